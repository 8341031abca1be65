/** What a session waits for, in a person's words. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { short } from './figures';
import type { IKernelState } from './state';

/** In a few words. */
export function waitingWords(kernel: IKernelState, trans: TranslationBundle): string {
  switch (kernel.waits_on) {
    case 'memory':
      return trans.__('waiting for memory');
    case 'copy':
      return trans.__('waiting for its memory');
    case 'drain':
      return trans.__('waiting for maintenance');
    case 'budget':
      return trans.__('waiting, over budget');
    default:
      return waitingTurn(kernel.ahead, trans);
  }
}

function waitingTurn(ahead: number | undefined, trans: TranslationBundle): string {
  if (ahead === undefined) {
    return trans.__('waiting');
  }
  return ahead ? trans.__('waiting, %1 ahead', ahead) : trans.__('waiting, next');
}

/** Beside the cell that waits. */
export function cellWords(kernel: IKernelState, trans: TranslationBundle): string {
  switch (kernel.waits_on) {
    case 'memory':
      return trans.__('waits for memory of the GPU');
    case 'copy':
      return trans.__('waits for its memory to come back to the GPU');
    case 'drain':
      return trans.__('waits for the maintenance of the GPU to end');
    case 'budget':
      return trans.__('waits for the GPU: over budget');
    default:
      return cellTurn(kernel.ahead, trans);
  }
}

function cellTurn(ahead: number | undefined, trans: TranslationBundle): string {
  if (ahead === undefined) {
    return trans.__('waits for the GPU');
  }
  return ahead
    ? trans.__('waits for the GPU: %1 ahead', ahead)
    : trans.__('waits for the GPU: next');
}

/** In a sentence; `owner`: whose notebook it is. */
export function waitingReason(
  kernel: IKernelState,
  trans: TranslationBundle,
  owner?: string
): string {
  switch (kernel.waits_on) {
    case 'memory':
      return trans.__('There is no room on the GPU for it now; it goes on when there is.');
    case 'copy':
      return trans.__('Its memory is on its way back from the host to the GPU.');
    case 'drain':
      return trans.__('The GPU takes no new work until its maintenance is over.');
    case 'budget':
      return trans.__('Your GPU time is used up; it goes on when the GPU has nothing else to do.');
    default:
      return othersReason(kernel, trans, owner);
  }
}

function othersReason(kernel: IKernelState, trans: TranslationBundle, owner?: string): string {
  const behind = [...new Set(kernel.behind ?? [])];
  if (owner && behind.length && behind.every(name => name === owner)) {
    return trans.__('Another notebook of yours has its turn on the GPU.');
  }
  const names = behind.filter(name => name && name !== owner).map(name => short(name, 40));
  return names.length && names.length <= 5
    ? trans.__('It takes turns with others, now with %1.', names.join(', '))
    : trans.__('It takes turns with others who use the GPU.');
}
