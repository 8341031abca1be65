/** The states and reasons of a session in a person's words. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { duration, sizeOf } from './figures';
import type { IKernelState, IShareState, IState } from './state';
import type { Silence } from './store';
import { waitingReason, waitingWords } from './waiting';

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
      return trans.__(
        'What it had on the GPU is lost. The kernel lives: run the cells again that make its tensors.'
      );
    case 'spilled':
      return trans.__('Its memory is on the host, and comes back by itself at the next use.');
    default:
      return trans.__('This notebook asks nothing of the GPU now.');
  }
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
export function staleWords(
  state: IState,
  silence: Silence | null,
  trans: TranslationBundle
): string {
  if (silence === 'refused') {
    return trans.__('The notebook server lets this page in no more; reload it to sign in again.');
  }
  if (silence) {
    return trans.__('The notebook server does not answer; these are the last figures known.');
  }
  return state.problem;
}
