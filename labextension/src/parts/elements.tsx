/** Small pieces that several parts show. */

import { Button } from '@jupyterlab/ui-components';
import * as React from 'react';

import { percentage } from '../model/figures';
import type { ISharedGpu } from '../tokens';

/** A bar that says how much of a whole is used, with the figures above it. */
export function Meter(props: {
  label: string;
  text: string;
  part: number;
  whole: number;
}): JSX.Element {
  const { label, part, text, whole } = props;
  const percent = percentage(part, whole);
  return (
    <div className="jgpu-Meter">
      <div className="jgpu-Row">
        <span>{label}</span>
        <span className="jgpu-Figure">{text}</span>
      </div>
      {whole > 0 && (
        <div
          className="jgpu-Bar"
          role="meter"
          aria-label={label}
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={Math.round(percent)}
          aria-valuetext={text}
        >
          <span
            className={percent > 90 ? 'jgpu-mod-full' : undefined}
            style={{ width: `${percent}%` }}
          />
        </div>
      )}
    </div>
  );
}

/** A name and its figure in one line. */
export function Figure(props: { label: string; text: string; mark?: string }): JSX.Element {
  return (
    <div className="jgpu-Row">
      <span>
        {props.mark && <span className={`jgpu-Mark ${props.mark}`} aria-hidden="true" />}
        {props.label}
      </span>
      <span className="jgpu-Figure">{props.text}</span>
    </div>
  );
}

/** What a person can do with a kernel's memory; nothing where they may not, or there is none. */
export function MemoryButtons(props: { gpu: ISharedGpu; kernel: string | undefined }): JSX.Element {
  const { actions, trans } = props.gpu;
  const { kernel } = props;
  if (!actions.canAct(kernel)) {
    return <></>;
  }
  return (
    <>
      <Button
        small
        className="jgpu-Button"
        title={trans.__('Move all but the model to the host; it comes back by itself when needed')}
        onClick={() => void actions.release(kernel)}
      >
        {trans.__('Release')}
      </Button>
      <Button
        small
        className="jgpu-Button"
        title={trans.__('Move the model to the host as well; it comes back by itself when needed')}
        onClick={() => void actions.evict(kernel)}
      >
        {trans.__('Evict')}
      </Button>
    </>
  );
}

/** The sentence that the figures are those of earlier. */
export function Stale(props: { text: string }): JSX.Element {
  return props.text ? (
    <p className="jgpu-Stale" role="status">
      {props.text}
    </p>
  ) : (
    <></>
  );
}
