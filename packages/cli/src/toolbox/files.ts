/** Single files in and out of a sandbox. */
import { CliError } from '../cli-error.ts';
import type { Toolbox } from './toolbox.ts';

export interface RemoteEntry {
  directory: boolean;
}

/** What is at that path, links followed; null when nothing is. */
export async function statRemote(toolbox: Toolbox, path: string): Promise<RemoteEntry | null> {
  const entry = await info(toolbox, path);
  // The service tells about the link itself; what it leads to shows when a folder is asked for.
  if (entry?.type !== 'symlink') return entry && { directory: entry.isDir ?? false };
  const behind = await info(toolbox, `${path.replace(/\/+$/, '')}/.`).catch(() => null);
  return { directory: behind?.isDir ?? false };
}

async function info(toolbox: Toolbox, path: string): Promise<{ isDir?: boolean; type?: string } | null> {
  try {
    return await toolbox.http.json(toolbox.url('files/info'), { query: { path } });
  } catch (error) {
    if (error instanceof CliError && error.status === 404) return null;
    throw error;
  }
}

export async function uploadFile(
  toolbox: Toolbox,
  path: string,
  body: NodeJS.ReadableStream,
  options: { bytes?: number; mode?: number } = {},
): Promise<void> {
  await toolbox.http.json<unknown>(toolbox.url('files/upload'), {
    method: 'POST',
    query: { path, ...(options.mode === undefined ? {} : { mode: options.mode.toString(8) }) },
    body,
    headers: {
      'content-type': 'application/octet-stream',
      ...(options.bytes === undefined ? {} : { 'content-length': String(options.bytes) }),
    },
    // The answer comes after the last byte; the body itself shows that something goes on.
    timeoutMs: 3_600_000,
  });
}

export async function downloadFile(toolbox: Toolbox, path: string): Promise<NodeJS.ReadableStream> {
  const answer = await toolbox.http.stream(toolbox.url('files/download'), {
    query: { path },
    idleMs: 120_000,
  });
  return answer.body;
}
