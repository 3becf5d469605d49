/** The files of a guest: read, written, listed and removed by its agent. */
import { Readable } from 'node:stream';
import type { GuestConnection } from './connection.ts';
import { cancelOnAbort } from './guest-calls.ts';
import type { GuestCalls } from './guest-calls.ts';
import { GuestError } from './guest-error.ts';
import { type FileEntry, readEntries, readEntry, readInt } from './replies.ts';
import type { CallOptions } from './requests.ts';

export class GuestFiles {
  readonly #connection: GuestConnection;
  readonly #calls: GuestCalls;

  constructor(connection: GuestConnection, calls: GuestCalls) {
    this.#connection = connection;
    this.#calls = calls;
  }

  /** The file's bytes. Errors (such as `not_found`) come as the stream's error. */
  read(path: string, options: { offset?: number; length?: number; signal?: AbortSignal } = {}): Readable {
    const { signal, ...range } = options;
    const stream = this.#connection.request('read-file', { path, ...range });
    const release = cancelOnAbort(stream, 'read-file', signal);
    stream.result.catch(() => undefined).finally(release);
    stream.stdout.once('close', () => {
      // A reader that stops in the middle does not need the rest. After the end there is nothing to cancel.
      if (stream.stdout.readableEnded) return;
      stream.cancel(new GuestError('aborted', `reading ${path} was given up`));
    });
    return stream.stdout;
  }

  /**
   * Writes a file from a stream or buffer; it appears whole or not at all. When the guest refuses, a stream that
   * was not read to its end is left to the caller.
   * @returns bytes written
   */
  async write(
    path: string,
    source: AsyncIterable<Uint8Array> | Uint8Array,
    options: { mode?: string; signal?: AbortSignal } = {},
  ): Promise<number> {
    const stream = this.#connection.request('write-file', { path, mode: options.mode });
    const release = cancelOnAbort(stream, 'write-file', options.signal);
    const body =
      source instanceof Readable ? source : Readable.from(source instanceof Uint8Array ? [source] : source);
    const broken = (error?: Error | null): void => {
      if (error || !body.readableEnded) {
        stream.cancel(
          new GuestError('aborted', `what was to be written to ${path} broke off`, { cause: error }),
        );
      }
    };
    body.once('error', broken).once('close', broken);
    if (body.destroyed) broken(body.errored);
    // Not pipeline(): when the guest refuses (no space left), the source must live on, it may be a request that
    // is still to be answered.
    body.pipe(stream.stdin);
    try {
      return readInt(await stream.result, 'bytes');
    } finally {
      body.unpipe(stream.stdin);
      body.off('error', broken).off('close', broken);
      release();
    }
  }

  async list(path: string, options?: CallOptions): Promise<{ entries: FileEntry[]; truncated: boolean }> {
    return readEntries(await this.#calls.call('list-dir', { path }, options));
  }

  /** Of the entry itself; with `follow`, of what a link leads to. */
  async stat(path: string, options: CallOptions & { follow?: boolean } = {}): Promise<FileEntry> {
    return readEntry(await this.#calls.call('stat', { path, follow: options.follow ?? false }, options));
  }

  async remove(path: string, options: CallOptions & { recursive?: boolean } = {}): Promise<void> {
    await this.#calls.call('remove', { path, recursive: options.recursive ?? false }, options);
  }

  async makeDir(
    path: string,
    options: CallOptions & { mode?: string; parents?: boolean } = {},
  ): Promise<void> {
    await this.#calls.call(
      'make-dir',
      { path, mode: options.mode, parents: options.parents ?? false },
      options,
    );
  }
}
