/** COPY as streams, in its text format, which does not depend on the version of PostgreSQL. The client must not be in pipeline mode. */
import { pipeline } from 'node:stream/promises';
import type { Client } from 'pg';
import { from, to } from 'pg-copy-streams';

/** The rows of `copy ... to stdout`. If it is not read to its end, the connection is destroyed: PostgreSQL still sends. */
export async function* copyOut(client: Client, sql: string): AsyncGenerator<Buffer, void> {
  const rows = client.query(to(sql));
  try {
    yield* rows as AsyncIterable<Buffer>;
  } finally {
    if (!rows.readableEnded)
      (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
  }
}

/** Sends `source` to `copy ... from stdin`. @returns the number of rows. @throws the error of PostgreSQL or of `source` */
export async function copyIn(
  client: Client,
  sql: string,
  source: AsyncIterable<Uint8Array>,
): Promise<number> {
  const rows = client.query(from(sql));
  await pipeline(source, rows);
  return rows.rowCount ?? 0;
}
