/** The body of a call: an argument, a file, or stdin; and its headers. */
import { open } from 'node:fs/promises';
import { CliError, usageError } from '../cli-error.ts';
import type { Context } from '../terminal.ts';
import { collect } from './collect.ts';

/** What a service takes for one call. */
const MAX_BYTES = 6 * 1024 * 1024;

export interface CallBody {
  bytes: Uint8Array<ArrayBuffer>;
  /** As it looks: JSON, text, or neither. */
  contentType: string;
}

export interface CallOptions {
  file?: string;
  header?: string[];
}

/**
 * @param text of the command line; `-` is stdin; nothing is an empty body
 * @param file a path, instead; `-` is stdin
 */
export async function readBody(
  context: Context,
  text: string | undefined,
  file: string | undefined,
): Promise<CallBody> {
  if (text !== undefined && file !== undefined) throw usageError('a body and --file do not go together');
  const path = file ?? (text === '-' ? '-' : undefined);
  const bytes = path === undefined ? encode(text ?? '') : await read(context, path);
  if (bytes === undefined || bytes.length > MAX_BYTES)
    throw usageError(`a body has at most ${MAX_BYTES / 2 ** 20} MiB, but this one has more`);
  return { bytes, contentType: contentTypeOf(bytes) };
}

const encode = (text: string): Uint8Array<ArrayBuffer> => new TextEncoder().encode(text);

async function read(context: Context, path: string): Promise<Uint8Array<ArrayBuffer> | undefined> {
  if (path === '-') return collect(context, context.terminal.stdin as AsyncIterable<Buffer>, MAX_BYTES);
  try {
    await using handle = await open(path);
    return await collect(context, handle.createReadStream({ end: MAX_BYTES }), MAX_BYTES);
  } catch (error) {
    if (error instanceof CliError) throw error;
    throw usageError(`${path} cannot be read: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function contentTypeOf(bytes: Uint8Array): string {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return 'application/octet-stream';
  }
  try {
    JSON.parse(text);
    return 'application/json';
  } catch {
    return 'text/plain; charset=utf-8';
  }
}

/** `-H 'Name: value'`, by name. */
export function headersOf(given: readonly string[]): Record<string, string> {
  const headers = new Headers();
  for (const text of given) {
    const colon = text.indexOf(':');
    try {
      headers.append(text.slice(0, Math.max(colon, 0)), text.slice(colon + 1).trim());
    } catch {
      throw usageError(`-H needs a header, as in 'Accept: text/plain', but was ${JSON.stringify(text)}`);
    }
  }
  return Object.fromEntries(headers);
}
