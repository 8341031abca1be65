/** *My share*: the time and memory of all one's notebooks against what one may have. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { sizeOf } from '../model/figures';
import type { IShareState } from '../model/state';
import { budgetWords } from '../model/words';
import type { ISharedGpu } from '../tokens';
import { Figure, Meter } from './elements';

/** When new work is taken again, for whom it is not now. */
export function freeAt(share: IShareState, trans: TranslationBundle): JSX.Element {
  if (!share.free_at) {
    return <></>;
  }
  const moment = new Date(share.free_at * 1000);
  const sameDay = moment.toDateString() === new Date().toDateString();
  const when = sameDay
    ? moment.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit' })
    : moment.toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' });
  return <Figure label={trans.__('Budget frees at')} text={when} />;
}

export function Share({ gpu }: { gpu: ISharedGpu }): JSX.Element {
  const { store, trans } = gpu;
  const { share } = store.state;
  if (!share) {
    return <p className="jgpu-Empty">{trans.__('Nothing is known of your share yet.')}</p>;
  }
  const sessions = share.most_sessions
    ? trans.__('%1 of %2', share.sessions, share.most_sessions)
    : String(share.sessions);
  return (
    <>
      <Meter
        label={trans.__('Memory')}
        text={sizeOf(share.used, share.memory)}
        part={share.used}
        whole={share.memory}
      />
      <Meter
        label={trans.__('Models')}
        text={sizeOf(share.resident, share.most_resident)}
        part={share.resident}
        whole={share.most_resident}
      />
      <Meter
        label={trans.__('GPU time')}
        text={budgetWords(share, trans)}
        part={share.spent}
        whole={share.budget}
      />
      {freeAt(share, trans)}
      <Figure label={trans.__('Sessions')} text={sessions} />
      <Figure
        label={trans.__('Weight')}
        text={String(Number((share.weight ?? 1).toPrecision(3)))}
      />
      {share.text && <p className="jgpu-Note">{share.text}</p>}
    </>
  );
}
