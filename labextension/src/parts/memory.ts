/** Which cell a kernel was at last, kept for the window's next load of the page. */

const KEY = '@jgpu/lab:cells';
const MOST = 50;

export interface IRemembered {
  cell: string;
  count: number;
  /** when it began: milliseconds since the epoch by this machine's clock */
  at: number;
}

function all(): [string, IRemembered][] {
  try {
    const kept = JSON.parse(window.sessionStorage.getItem(KEY) ?? '[]');
    return Array.isArray(kept) ? kept : [];
  } catch {
    return []; // storage that is forbidden, or was written by somebody else
  }
}

export function remember(kernel: string, cell: string, count: number): void {
  const entry: IRemembered = { cell, count, at: Date.now() };
  const others = all().filter(([id]) => id !== kernel);
  try {
    window.sessionStorage.setItem(KEY, JSON.stringify([[kernel, entry], ...others].slice(0, MOST)));
  } catch {
    // Then the next load of the page does not know.
  }
}

export function recall(kernel: string): IRemembered | null {
  return all().find(([id]) => id === kernel)?.[1] ?? null;
}
