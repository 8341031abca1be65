/** *My kernels*: each of the person's sessions, with what can be done. */

import { Button, notebookIcon, stopIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { size } from '../model/figures';
import type { IKernelState } from '../model/state';
import { stateWords } from '../model/words';
import type { ISharedGpu } from '../tokens';
import { MemoryButtons } from './elements';

function Kernel(props: { gpu: ISharedGpu; id: string; kernel: IKernelState }): JSX.Element {
  const { gpu, id, kernel } = props;
  const { actions, owners, trans } = gpu;
  const held = size(kernel.held ?? 0);
  const name = owners.name(id, kernel.path);
  return (
    <li className="jgpu-Kernel" data-jgpu-kernel={id} aria-label={name}>
      <div className="jgpu-Row">
        <span className="jgpu-Name" title={owners.path(id, kernel.path)}>
          <notebookIcon.react tag="span" stylesheet="menuItem" />
          {name}
        </span>
        <span className="jgpu-Buttons">
          {actions.allowed && actions.runsHere(id) && (
            <Button
              minimal
              small
              title={trans.__('Shut down the kernel of %1', name)}
              aria-label={trans.__('Shut down the kernel of %1', name)}
              onClick={() => void actions.shutDown(id)}
            >
              <stopIcon.react tag="span" stylesheet="menuItem" />
            </Button>
          )}
          <span className="jgpu-Figure">{held}</span>
        </span>
      </div>
      <div className="jgpu-Row">
        <span className="jgpu-Note">{stateWords(kernel, trans)}</span>
        <span className="jgpu-Buttons">
          <MemoryButtons gpu={gpu} kernel={id} />
        </span>
      </div>
    </li>
  );
}

export function Kernels({ gpu }: { gpu: ISharedGpu }): JSX.Element {
  const kernels = Object.entries(gpu.store.state.kernels).sort(
    ([, one], [, other]) => one.session - other.session
  );
  if (!kernels.length) {
    return <p className="jgpu-Empty">{gpu.trans.__('None of your notebooks uses the GPU now.')}</p>;
  }
  return (
    <ul className="jgpu-List">
      {kernels.map(([id, kernel]) => (
        <Kernel key={id} gpu={gpu} id={id} kernel={kernel} />
      ))}
    </ul>
  );
}
