/** Single files in and out of a sandbox. */
import type { FileInfo } from '@releap/contract/wire';
import { hasStatus } from './error.ts';
import type { RawAnswer } from './raw-answer.ts';
import type { Toolbox } from './toolbox.ts';
import type { RawBody } from './types.ts';

export interface RemoteEntry {
  directory: boolean;
}

/** What is at that path, links followed; null when nothing is. */
export async function statRemote(toolbox: Toolbox, path: string): Promise<RemoteEntry | null> {
  const entry = await info(toolbox, path);
  // The service describes the link itself; its target shows when a folder is requested.
  if (entry?.type !== 'symlink') return entry && { directory: entry.isDir };
  const behind = await info(toolbox, `${path.replace(/\/+$/, '')}/.`).catch(() => null);
  return { directory: behind?.isDir ?? false };
}

async function info(toolbox: Toolbox, path: string): Promise<FileInfo | null> {
  try {
    return await toolbox.api.getFileInfo({ query: { path } });
  } catch (error) {
    if (hasStatus(error, 404)) return null;
    throw error;
  }
}

/**
 * Writes a file.
 * @param options.bytes the size of a stream, where it is known
 * @param options.mode permission bits of a new file
 */
export async function uploadFile(
  toolbox: Toolbox,
  path: string,
  body: RawBody,
  options: { bytes?: number; mode?: number } = {},
): Promise<void> {
  await toolbox.api.uploadFile(
    { query: { path, mode: options.mode?.toString(8) }, body },
    {
      headers: options.bytes === undefined ? {} : { 'content-length': String(options.bytes) },
      // The response comes after the last byte; reading the body shows progress.
      timeoutMs: 3_600_000,
    },
  );
}

/** The content of a file. */
export function downloadFile(toolbox: Toolbox, path: string): Promise<RawAnswer> {
  return toolbox.api.downloadFile({ query: { path } }, { idleMs: 120_000 });
}
