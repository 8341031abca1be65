/** Marks on the cells of all notebooks. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { CellMarks } from '../parts/cells';
import { ISharedGpu } from '../tokens';

const ID = '@jgpu/lab:cells';

function activate(
  _: JupyterFrontEnd,
  gpu: ISharedGpu,
  tracker: INotebookTracker,
  registry: ISettingRegistry | null
): void {
  if (!gpu.isPresent) {
    return;
  }
  let showsSeconds = false;
  const marks = new Set<CellMarks>();
  const mark = (panel: NotebookPanel) => {
    const made = new CellMarks(panel, gpu, () => showsSeconds);
    marks.add(made);
    panel.disposed.connect(() => marks.delete(made));
  };
  tracker.forEach(mark);
  tracker.widgetAdded.connect((_, panel) => mark(panel));
  void registry?.load(ID).then(settings => {
    const read = () => {
      showsSeconds = settings.composite.cell_seconds === true;
      marks.forEach(each => each.update());
    };
    read();
    settings.changed.connect(read);
  });
}

export const cells: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Says on a cell that it waits for the shared GPU.',
  autoStart: true,
  requires: [ISharedGpu, INotebookTracker],
  optional: [ISettingRegistry],
  activate
};
