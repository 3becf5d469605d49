import assert from 'node:assert/strict';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import type { PreviewWorld } from './preview-world.ts';

const BYTES = 60_000_000;
const CHUNK = Buffer.alloc(1_000_000);

/** Asserts that a client which does not read stops the server, and gets the whole answer once it reads. */
export async function assertSlowReaderStopsServer(
  world: PreviewWorld,
  port: number,
  host: string,
): Promise<void> {
  let written = 0;
  world.serve = (_request, response) => {
    const write = (): void => {
      while (written < BYTES) {
        written += CHUNK.length;
        if (!response.write(CHUNK)) return void response.once('drain', write);
      }
      response.end();
    };
    write();
  };
  const request = http.get({ host: '127.0.0.1', port, headers: { host }, agent: false });
  const [answer] = (await once(request, 'response')) as [IncomingMessage];
  let before = -1;
  while (before !== written) {
    before = written;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  assert.ok(written < BYTES, 'a reader that does not read stops the server');
  let size = 0;
  for await (const chunk of answer) size += (chunk as Buffer).length;
  assert.equal(size, BYTES);
}
