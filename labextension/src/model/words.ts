/** The states and reasons of a session in a person's words. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { duration, short, sizeOf } from './figures';
import type { IKernelState, IShareState, IState } from './state';

/** The state in one or two words; what a person must see at a glance. */
export function stateWords(kernel: IKernelState | undefined, trans: TranslationBundle): string {
  switch (kernel?.state) {
    case undefined:
      return trans.__('not in use');
    case 'running':
      return trans.__('running');
    case 'waiting':
      return waitingWords(kernel, trans);
    case 'starting':
      return trans.__('starting');
    case 'paused':
      return trans.__('paused');
    case 'lost':
      return trans.__('lost');
    default:
      return trans.__('resting');
  }
}

function waitingWords(kernel: IKernelState, trans: TranslationBundle): string {
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

/** Why it is so, in a sentence; `owner`: whose notebook it is. */
export function reason(
  kernel: IKernelState | undefined,
  trans: TranslationBundle,
  owner?: string
): string {
  switch (kernel?.state) {
    case undefined:
      return trans.__('This notebook has not used the GPU yet.');
    case 'running':
      return trans.__('This notebook has its turn on the GPU.');
    case 'waiting':
      return waitingReason(kernel, trans, owner);
    case 'starting':
      return trans.__('The session on the GPU begins.');
    case 'paused':
      return trans.__('An administrator has paused this session; nothing is lost.');
    case 'lost':
      return trans.__('The session on the GPU is lost. Restart the kernel to begin a new one.');
    case 'spilled':
      return trans.__('Its memory is on the host, and comes back by itself at the next use.');
    default:
      return trans.__('This notebook asks nothing of the GPU now.');
  }
}

function waitingReason(kernel: IKernelState, trans: TranslationBundle, owner?: string): string {
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

/** The memory of all one's notebooks against its limit; empty where nothing is used. */
export function shareWords(share: IShareState | null | undefined): string {
  if (!share) {
    return '';
  }
  return share.memory || share.used ? sizeOf(share.used, share.memory) : '';
}

/** The time that was used of a budget. */
export function budgetWords(share: IShareState, trans: TranslationBundle): string {
  return share.budget
    ? trans.__(
        '%1 of %2 in %3',
        duration(share.spent),
        duration(share.budget),
        duration(share.period)
      )
    : trans.__('%1, no limit', duration(share.spent));
}

/** The one sentence that is said while the figures are those of earlier; empty otherwise. */
export function staleWords(state: IState, silent: boolean, trans: TranslationBundle): string {
  if (silent) {
    return trans.__('The notebook server does not answer; these are the last figures known.');
  }
  return state.problem;
}
