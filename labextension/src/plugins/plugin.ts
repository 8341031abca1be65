/** What the parts share: the state of the GPU, and the connection that it comes by. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { PageConfig } from '@jupyterlab/coreutils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { Actions } from '../actions';
import { Connection } from '../connection';
import { Front } from '../front';
import { Store } from '../model/store';
import { Owners } from '../owners';
import { ISharedGpu } from '../tokens';

function activate(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  translator: ITranslator | null
): ISharedGpu {
  const { serviceManager, shell } = app;
  const trans = (translator ?? nullTranslator).load('jgpu');
  const store = new Store();
  const actions = new Actions(store, serviceManager, trans);
  // A server without the other half says nothing, and is asked nothing.
  const isPresent = PageConfig.getOption('jgpuServer') === 'true';
  if (isPresent) {
    const { kernels, serverSettings, sessions } = serviceManager;
    const isOpen = () => !kernels.running().next().done;
    const connection = new Connection(store, serverSettings, isOpen);
    kernels.runningChanged.connect(() => connection.update());
    void kernels.ready.then(() => connection.update());
    sessions.runningChanged.connect(() => store.redraw());
  }
  const owners = new Owners(serviceManager.sessions, trans);
  return { isPresent, store, front: new Front(tracker, shell), owners, actions, trans };
}

export const plugin: JupyterFrontEndPlugin<ISharedGpu> = {
  id: '@jgpu/lab:plugin',
  description: 'Follows the GPU that several notebooks share.',
  autoStart: true,
  provides: ISharedGpu,
  requires: [INotebookTracker],
  optional: [ITranslator],
  activate
};
