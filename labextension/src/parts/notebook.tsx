/** *This notebook*: its state, how long an iteration takes, and what its memory is made of. */

import * as React from 'react';

import { duration, percentage, size } from '../model/figures';
import type { IKernelState } from '../model/state';
import { reason, stateWords } from '../model/words';
import type { ISharedGpu } from '../tokens';
import { Figure, MemoryButtons } from './elements';

const KINDS = ['model', 'kept', 'spilled'] as const;

function Memory(props: { gpu: ISharedGpu; kernel: IKernelState }): JSX.Element {
  const { kernel } = props;
  const { trans } = props.gpu;
  const labels = {
    model: trans.__('Model'),
    kept: trans.__('Kept besides'),
    spilled: trans.__('On the host')
  };
  const whole = KINDS.reduce((sum, kind) => sum + (kernel[kind] ?? 0), 0);
  return (
    <>
      <div className="jgpu-Bar jgpu-mod-split" aria-hidden="true">
        {KINDS.map(kind => (
          <span
            key={kind}
            className={`jgpu-mod-${kind}`}
            style={{ width: `${percentage(kernel[kind] ?? 0, whole)}%` }}
          />
        ))}
      </div>
      {KINDS.map(kind => (
        <Figure
          key={kind}
          label={labels[kind]}
          text={size(kernel[kind] ?? 0)}
          mark={`jgpu-mod-${kind}`}
        />
      ))}
    </>
  );
}

export function ThisNotebook({ gpu }: { gpu: ISharedGpu }): JSX.Element {
  const { front, store, trans } = gpu;
  if (!front.panel) {
    return <p className="jgpu-Empty">{trans.__('No notebook is open.')}</p>;
  }
  const kernel = store.kernel(front.kernel);
  return (
    <>
      <p className="jgpu-State" data-jgpu-state={kernel?.state ?? 'none'}>
        <span>{stateWords(kernel, trans)}</span>
      </p>
      <p className="jgpu-Note">{reason(kernel, trans, store.state.share?.user)}</p>
      {kernel && (
        <>
          <Memory gpu={gpu} kernel={kernel} />
          {kernel.iteration_seconds ? (
            <Figure label={trans.__('An iteration')} text={duration(kernel.iteration_seconds)} />
          ) : null}
          <Figure label={trans.__('GPU time')} text={duration(kernel.device_seconds ?? 0)} />
          <div className="jgpu-Buttons">
            <MemoryButtons gpu={gpu} kernel={front.kernel} />
          </div>
        </>
      )}
    </>
  );
}
