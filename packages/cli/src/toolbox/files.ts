/** Single files in and out of a sandbox. */
import type { FileInfo } from '@releap/contract';
import type { RawAnswer } from '@releap/sdk';
import { Readable } from 'node:stream';
import type { ReadableStream } from 'node:stream/web';
import { CliError } from '../cli-error.ts';
import type { Toolbox } from './toolbox.ts';

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
    if (error instanceof CliError && error.status === 404) return null;
    throw error;
  }
}

export async function uploadFile(
  toolbox: Toolbox,
  path: string,
  body: Readable,
  options: { bytes?: number; mode?: number } = {},
): Promise<void> {
  await toolbox.api.uploadFile(
    {
      query: { path, mode: options.mode?.toString(8) },
      body: Readable.toWeb(body) as ReadableStream<Uint8Array>,
    },
    {
      headers: options.bytes === undefined ? {} : { 'content-length': String(options.bytes) },
      // The response comes after the last byte; reading the body shows progress.
      timeoutMs: 3_600_000,
    },
  );
}

export function downloadFile(toolbox: Toolbox, path: string): Promise<RawAnswer> {
  return toolbox.api.downloadFile({ query: { path } }, { idleMs: 120_000 });
}
