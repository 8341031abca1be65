/** What a cell says of itself. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { duration } from './figures';
import type { IKernelState } from './state';
import { cellWords } from './waiting';

/** While it is under way: why it waits; empty while it runs. */
export function waitText(kernel: IKernelState, trans: TranslationBundle): string {
  return kernel.state === 'waiting' ? cellWords(kernel, trans) : '';
}

/**
 * When it is done: what it took of the GPU, and of the clock.
 *
 * `wall`: seconds by the clock. Empty where it took nothing of the GPU.
 */
export function doneText(
  seconds: number | undefined,
  wall: number,
  trans: TranslationBundle
): string {
  return seconds ? trans.__('GPU %1 of %2', duration(seconds), duration(wall)) : '';
}
