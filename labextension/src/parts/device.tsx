/** *The device*: how full it is, who had its lanes over the last minute, and who is there. */

import { Table } from '@jupyterlab/ui-components';
import * as React from 'react';

import { duration, short, sizeOf } from '../model/figures';
import type { IStretch } from '../model/lanes';
import { SPAN } from '../model/lanes';
import type { IDeviceSession, IDeviceState } from '../model/state';
import { stateWords } from '../model/words';
import type { ISharedGpu } from '../tokens';
import { Figure, Meter } from './elements';

/** A lane as a strip: the last minute from left to right. */
function Strip(props: {
  gpu: ISharedGpu;
  lane: string;
  stretches: readonly IStretch[];
  own: ReadonlySet<number>;
}): JSX.Element {
  const { gpu, lane, own, stretches } = props;
  const now = Math.max(gpu.store.serverNow, stretches[stretches.length - 1].begin);
  const label = gpu.trans.__('Lane %1 over the last minute', lane);
  return (
    <svg
      className="jgpu-Strip"
      viewBox={`0 0 ${SPAN} 1`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      <title>{label}</title>
      {stretches.map(({ begin, session }, index) => {
        const left = Math.max(0, SPAN - (now - begin));
        const end = stretches[index + 1]?.begin ?? now;
        const right = Math.max(0, SPAN - (now - end));
        return session === null || right <= left ? null : (
          <rect
            key={begin}
            className={own.has(session) ? 'jgpu-mod-own' : 'jgpu-mod-other'}
            x={left}
            width={right - left}
            height={1}
          />
        );
      })}
    </svg>
  );
}

function Sessions(props: { gpu: ISharedGpu; device: IDeviceState }): JSX.Element {
  const { device, gpu } = props;
  const { trans } = gpu;
  const who = (session: IDeviceSession) =>
    session.own ? trans.__('you') : short(session.user, 30) || trans.__('somebody');
  const state = (session: IDeviceSession) =>
    session.state === 'waiting'
      ? trans.__('waiting')
      : stateWords({ session: 0, path: '', state: session.state }, trans);
  const time = (session: IDeviceSession) => session.device_seconds ?? 0;
  return (
    <Table<IDeviceSession>
      blankIndicator={() => <p className="jgpu-Empty">{trans.__('Nobody uses the device now.')}</p>}
      sortKey="time"
      sortDirection={-1}
      rows={Object.entries(device.sessions).map(([key, data]) => ({ key, data }))}
      columns={[
        {
          id: 'who',
          label: trans.__('Who'),
          renderCell: session => <span className="jgpu-Name">{who(session)}</span>,
          sort: (one, other) => who(one).localeCompare(who(other))
        },
        {
          id: 'state',
          label: trans.__('State'),
          renderCell: session => <>{state(session)}</>,
          sort: (one, other) => state(one).localeCompare(state(other))
        },
        {
          id: 'time',
          label: trans.__('GPU time'),
          renderCell: session => <span className="jgpu-Figure">{duration(time(session))}</span>,
          sort: (one, other) => time(one) - time(other)
        }
      ]}
    />
  );
}

export function Device({ gpu }: { gpu: ISharedGpu }): JSX.Element {
  const { store, trans } = gpu;
  const { device, drain_text: drain } = store.state;
  if (!device) {
    return <p className="jgpu-Empty">{trans.__('Nothing is known of the device yet.')}</p>;
  }
  const own = new Set(
    Object.entries(device.sessions)
      .filter(([, session]) => session.own)
      .map(([id]) => Number(id))
  );
  return (
    <>
      <Figure label={trans.__('Device')} text={short(device.name || device.kind)} />
      <Meter
        label={trans.__('Memory')}
        text={sizeOf(device.used, device.capacity)}
        part={device.used}
        whole={device.capacity}
      />
      {[...store.lanes.stretches].map(([lane, stretches]) => (
        <Strip key={lane} gpu={gpu} lane={lane} stretches={stretches} own={own} />
      ))}
      <div className="jgpu-Row jgpu-Legend">
        <span>
          <span className="jgpu-Mark jgpu-mod-own" aria-hidden="true" />
          {trans.__('yours')}
          <span className="jgpu-Mark jgpu-mod-other" aria-hidden="true" />
          {trans.__('others')}
        </span>
        <span>{trans.__('last minute')}</span>
      </div>
      <Sessions gpu={gpu} device={device} />
      {(drain || device.note) && <p className="jgpu-Note">{drain || device.note}</p>}
    </>
  );
}
