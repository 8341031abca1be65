/** The panel at the right. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ILayoutRestorer } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { GpuPanel } from '../parts/panel';
import { ISharedGpu } from '../tokens';

function activate(
  app: JupyterFrontEnd,
  gpu: ISharedGpu,
  restorer: ILayoutRestorer | null,
  translator: ITranslator | null
): void {
  if (!gpu.isPresent) {
    return;
  }
  const panel = new GpuPanel(gpu, translator ?? nullTranslator);
  restorer?.add(panel, panel.id);
  app.shell.add(panel, 'right', { rank: 200, type: 'Shared GPU' });
}

export const panel: JupyterFrontEndPlugin<void> = {
  id: '@jgpu/lab:panel',
  description: 'A panel about the shared GPU: memory, share, device.',
  autoStart: true,
  requires: [ISharedGpu],
  optional: [ILayoutRestorer, ITranslator],
  activate
};
