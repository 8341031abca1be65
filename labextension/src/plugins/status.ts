/** The state of the notebook in front: in the status bar, or, without one, in the toolbar. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { Status } from '../parts/status';
import { ISharedGpu } from '../tokens';

function inStatusBar(gpu: ISharedGpu, statusBar: IStatusBar): void {
  const { front, store } = gpu;
  const changed = new Signal<object, void>({});
  front.changed.connect(() => changed.emit());
  store.changed.connect(() => changed.emit());
  statusBar.registerStatusItem('@jgpu/lab:status', {
    item: new Status(gpu, () => front.kernel, 'status bar'),
    align: 'left',
    rank: 3,
    priority: 1, // also where there is room for little
    isActive: () => front.isActive && store.known && store.state.shares,
    activeStateChanged: changed
  });
}

function inToolbar(gpu: ISharedGpu, panel: NotebookPanel): Widget {
  const { store } = gpu;
  const item = new Status(gpu, () => panel.sessionContext.session?.kernel?.id, 'toolbar');
  const show = () => item.setHidden(!store.known || !store.state.shares);
  show();
  store.changed.connect(show);
  item.disposed.connect(() => store.changed.disconnect(show));
  return item;
}

function activate(
  _: JupyterFrontEnd,
  gpu: ISharedGpu,
  statusBar: IStatusBar | null,
  toolbars: IToolbarWidgetRegistry | null
): void {
  const wanted = gpu.isPresent && !statusBar;
  if (gpu.isPresent && statusBar) {
    inStatusBar(gpu, statusBar);
  }
  toolbars?.addFactory<NotebookPanel>('Notebook', 'jgpu', panel => {
    const item = wanted ? inToolbar(gpu, panel) : new Widget();
    if (!wanted) {
      item.hide();
    }
    return item;
  });
}

export const status: JupyterFrontEndPlugin<void> = {
  id: '@jgpu/lab:status',
  description: 'Shows whether a notebook runs, waits or rests on the shared GPU.',
  autoStart: true,
  requires: [ISharedGpu],
  optional: [IStatusBar, IToolbarWidgetRegistry],
  activate
};
