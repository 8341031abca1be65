/** The extension's plugins: what they share, and each part by itself, so that any can be left out. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { cells } from './plugins/cells';
import { commands } from './plugins/commands';
import { panel } from './plugins/panel';
import { plugin } from './plugins/plugin';
import { running } from './plugins/running';
import { status } from './plugins/status';

export * from './tokens';

const plugins: JupyterFrontEndPlugin<unknown>[] = [plugin, status, cells, panel, running, commands];

export default plugins;
