/** What the parts of the extension share. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import type { Actions } from './actions';
import type { Front } from './front';
import type { Store } from './model/store';
import type { Owners } from './owners';

export interface ISharedGpu {
  /** Whether the notebook server has said that it knows of a shared GPU. */
  readonly isPresent: boolean;
  readonly store: Store;
  readonly front: Front;
  readonly owners: Owners;
  readonly actions: Actions;
  readonly trans: TranslationBundle;
}

export const ISharedGpu = new Token<ISharedGpu>(
  '@jgpu/lab:ISharedGpu',
  'What is known of the GPU that several notebooks share.'
);
