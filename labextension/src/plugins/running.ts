/** The person's sessions on the device, among what runs. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRunningSessionManagers } from '@jupyterlab/running';

import { RunningOnGpu } from '../parts/running';
import { ISharedGpu } from '../tokens';

function activate(
  app: JupyterFrontEnd,
  gpu: ISharedGpu,
  managers: IRunningSessionManagers | null
): void {
  if (gpu.isPresent) {
    const open = (command: string, path: string) => void app.commands.execute(command, { path });
    managers?.add(new RunningOnGpu(gpu, open));
  }
}

export const running: JupyterFrontEndPlugin<void> = {
  id: '@jgpu/lab:running',
  description: 'Lists the sessions on the shared GPU among what runs.',
  autoStart: true,
  requires: [ISharedGpu],
  optional: [IRunningSessionManagers],
  activate
};
