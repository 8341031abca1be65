/** Commands for the palette, and for the menu on a row of what runs. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';

import { CONTEXT } from '../parts/running';
import { ISharedGpu } from '../tokens';

function activate(app: JupyterFrontEnd, gpu: ISharedGpu, palette: ICommandPalette | null): void {
  if (!gpu.isPresent) {
    return;
  }
  const { commands, contextMenu, shell } = app;
  const { actions, front, trans } = gpu;
  const add = (id: string, label: string, act: (kernel: string) => Promise<void>) => {
    // On a row of what runs its kernel is meant, else that of the notebook in front.
    const kernel = (fromRow: unknown) => (fromRow ? rowOf(app) : front.kernel);
    commands.addCommand(id, {
      label,
      isEnabled: args => actions.canAct(kernel(args.row)),
      execute: args => {
        const id = kernel(args.row);
        return actions.canAct(id) ? act(id) : undefined;
      }
    });
    palette?.addItem({ command: id, category: trans.__('Shared GPU') });
    contextMenu.addItem({ command: id, args: { row: true }, selector: '.jgpu-Running', rank: 0 });
  };
  add('jgpu:release', trans.__('Release GPU Memory'), id => actions.release(id));
  add('jgpu:evict', trans.__('Release GPU Memory and Model'), id => actions.evict(id));
  commands.addCommand('jgpu:show', {
    label: trans.__('Show Shared GPU'),
    execute: () => shell.activateById('jgpu-panel')
  });
  palette?.addItem({ command: 'jgpu:show', category: trans.__('Shared GPU') });
}

/** The kernel of the row that the menu was opened on. */
function rowOf(app: JupyterFrontEnd): string | undefined {
  const isRow = (node: HTMLElement) => node.dataset.context?.startsWith(CONTEXT) === true;
  return app.contextMenuHitTest(isRow)?.dataset.context?.slice(CONTEXT.length);
}

export const commands: JupyterFrontEndPlugin<void> = {
  id: '@jgpu/lab:commands',
  description: 'Commands that give memory of the shared GPU back.',
  autoStart: true,
  requires: [ISharedGpu],
  optional: [ICommandPalette],
  activate
};
