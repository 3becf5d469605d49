/**
 * PostgreSQL's COPY as streams, which `pg` does not have. The client must not be in pipeline mode. Text format: it does not
 * depend on the version of PostgreSQL.
 */
import { once } from 'node:events';
import type { Client, Submittable } from 'pg';

/** What is used of `pg`'s connection. */
interface CopyConnection {
  stream: NodeJS.ReadWriteStream & { writableNeedDrain: boolean; destroy(): void };
  query(text: string): void;
  sendCopyFromChunk(chunk: Uint8Array): void;
  endCopyFrom(): void;
  sendCopyFail(message: string): void;
}

/** More than this that is not consumed yet pauses the connection. */
const BUFFERED_BYTES = 1024 * 1024;

/** The rows of `copy ... to stdout`, in pieces of one row each. If it is not read to its end, the connection is destroyed. */
export async function* copyOut(client: Client, sql: string): AsyncGenerator<Uint8Array, void> {
  const copy = new CopyOut(sql);
  client.query(copy);
  try {
    yield* copy.rows();
  } finally {
    copy.abandon();
  }
}

/** Sends `source` to `copy ... from stdin`. @returns the number of rows. @throws the error of PostgreSQL or of `source` */
export async function copyIn(
  client: Client,
  sql: string,
  source: AsyncIterable<Uint8Array>,
): Promise<number> {
  const copy = new CopyIn(sql, source);
  client.query(copy);
  return await copy.done.promise;
}

/** The messages that `pg` passes to what it executes. */
abstract class Copy implements Submittable {
  readonly #sql: string;
  protected connection: CopyConnection | undefined;

  constructor(sql: string) {
    this.#sql = sql;
  }

  submit(connection: unknown): void {
    this.connection = connection as CopyConnection;
    this.connection.query(this.#sql);
  }

  abstract handleError(error: Error): void;
  abstract handleCommandComplete(message: { text?: string }): void;
  abstract handleReadyForQuery(): void;
}

class CopyOut extends Copy {
  #rows: Uint8Array[] = [];
  #bytes = 0;
  #failure: Error | undefined;
  #isEnded = false;
  #wake: () => void = () => undefined;

  handleCopyData({ chunk }: { chunk: Uint8Array }): void {
    this.#rows.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes > BUFFERED_BYTES) this.connection?.stream.pause();
    this.#wake();
  }

  handleError(error: Error): void {
    this.#failure = error;
    this.#isEnded = true;
    this.#wake();
  }

  handleCommandComplete(): void {
    // The connection is ready a message later.
  }

  handleReadyForQuery(): void {
    this.#isEnded = true;
    this.#wake();
  }

  async *rows(): AsyncGenerator<Uint8Array, void> {
    for (;;) {
      const rows = this.#rows;
      this.#rows = [];
      this.#bytes = 0;
      this.connection?.stream.resume();
      yield* rows;
      if (this.#rows.length > 0) continue;
      if (this.#failure !== undefined) throw this.#failure;
      if (this.#isEnded) return;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  abandon(): void {
    if (!this.#isEnded) this.connection?.stream.destroy();
  }
}

class CopyIn extends Copy {
  readonly done = Promise.withResolvers<number>();
  readonly #source: AsyncIterable<Uint8Array>;
  #isEnded = false;
  #rows = 0;

  constructor(sql: string, source: AsyncIterable<Uint8Array>) {
    super(sql);
    this.#source = source;
    this.done.promise.catch(() => undefined);
  }

  handleCopyInResponse(): void {
    this.#send().catch((error: unknown) => {
      // Before PostgreSQL's own, which only repeats it.
      this.done.reject(error);
      if (!this.#isEnded) this.connection?.sendCopyFail('the source of the rows has failed');
    });
  }

  async #send(): Promise<void> {
    const { connection } = this;
    if (connection === undefined) return;
    for await (const chunk of this.#source) {
      // After an error PostgreSQL ignores what is still sent.
      if (this.#isEnded) return;
      connection.sendCopyFromChunk(chunk);
      if (connection.stream.writableNeedDrain)
        await Promise.race([once(connection.stream, 'drain'), this.done.promise.catch(() => undefined)]);
    }
    if (!this.#isEnded) connection.endCopyFrom();
  }

  handleError(error: Error): void {
    this.#isEnded = true;
    this.done.reject(error);
  }

  handleCommandComplete({ text }: { text?: string }): void {
    this.#rows = Number(/^COPY (\d+)$/.exec(text ?? '')?.[1] ?? 0);
  }

  handleReadyForQuery(): void {
    this.#isEnded = true;
    this.done.resolve(this.#rows);
  }
}
