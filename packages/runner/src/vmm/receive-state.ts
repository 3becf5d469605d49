import { createWriteStream } from 'node:fs';
import { chmod, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { Vm } from './vm.ts';

const SAVE_DEADLINE_MS = 30_000;
/** The device state of our machine is 0.1 MB. */
const STATE_MAX_BYTES = 64 * 1024 * 1024;
/** Between the VMM's and our own knowing that the transfer broke. */
const BREAK_GRACE_MS = 500;

/**
 * Saves the device state of a guest that stands still into `target`, a file that must not exist. The VMM is in its
 * jail and has no descriptor of ours: it writes to a socket that we put there.
 * @param jail folder that the VMM is shut into, and cannot change
 * @returns bytes written
 */
export async function receiveState(vm: Vm, jail: string, target: string): Promise<number> {
  const socketPath = join(jail, 'state');
  await rm(socketPath, { force: true });
  const server = createServer();
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(socketPath, resolve);
    });
    await chmod(socketPath, 0o666);
    let bytes = 0;
    const received = new Promise<void>((resolve, reject) => {
      server.once('connection', (socket) => {
        const bound = new Transform({
          transform(chunk: Buffer, _encoding, done) {
            bytes += chunk.length;
            done(bytes > STATE_MAX_BYTES ? new Error('the device state is absurdly large') : null, chunk);
          },
        });
        pipeline(socket, bound, createWriteStream(target, { flags: 'wx', mode: 0o644 })).then(
          resolve,
          reject,
        );
      });
    });
    const late = Promise.withResolvers<never>();
    const deadline = setTimeout(
      () => late.reject(new Error('the device state did not arrive')),
      SAVE_DEADLINE_MS,
    );
    let patience: NodeJS.Timeout | undefined;
    const saved = vm.saveState('/state', SAVE_DEADLINE_MS);
    saved.catch((error: unknown) => {
      // Why it could not be stored says more than that it could not be sent.
      patience = setTimeout(() => late.reject(error), BREAK_GRACE_MS);
    });
    try {
      await Promise.race([received, late.promise]);
      await saved;
      return bytes;
    } finally {
      clearTimeout(deadline);
      clearTimeout(patience);
    }
  } finally {
    server.close();
    await rm(socketPath, { force: true });
  }
}
