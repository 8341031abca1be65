/** What the page asks jgpu's part of the notebook server; by JupyterLab's own requests. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

/** What the server answers; throws a `ResponseError` with its own sentence where it refuses. */
export async function request(
  settings: ServerConnection.ISettings,
  path: string,
  init: RequestInit = {}
) {
  const url = URLExt.join(settings.baseUrl, 'jgpu/api', path);
  const response = await ServerConnection.makeRequest(url, init, settings);
  if (!response.ok) {
    const { message } = await response.json().catch(() => ({}));
    throw new ServerConnection.ResponseError(response, message);
  }
  return response.json();
}

/** Whether the server lets the page in no more, rather than being away. */
export function isRefusal(error: unknown): boolean {
  return (
    error instanceof ServerConnection.ResponseError && [401, 403].includes(error.response.status)
  );
}
