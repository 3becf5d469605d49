/** Connections as netd hands them over: a line that says where to, then the bytes of the guest. */
import type { Socket } from 'node:net';
import { Handover, HANDOVER_MAX_BYTES } from '@releap/contract/netd';
import { Compile } from 'typebox/compile';

const HANDOVER_MS = 5_000;
const handover = Compile(Handover);

export function handoverLine(connection: Handover): string {
  return `${JSON.stringify(connection)}\n`;
}

/** Reads the line. What follows it stays in the socket. A socket that sends something else is destroyed. */
export function readHandover(socket: Socket, accept: (connection: Handover) => void): void {
  let head = Buffer.alloc(0);
  const late = setTimeout(() => socket.destroy(), HANDOVER_MS);
  const done = (): void => {
    clearTimeout(late);
    socket.off('readable', onReadable);
  };
  const onReadable = (): void => {
    for (let chunk = socket.read() as Buffer | null; chunk !== null; chunk = socket.read() as Buffer | null) {
      head = Buffer.concat([head, chunk]);
      const end = head.indexOf(10);
      if (end === -1 && head.length <= HANDOVER_MAX_BYTES) continue;
      done();
      const connection = end === -1 ? undefined : parse(head.subarray(0, end));
      if (connection === undefined) return void socket.destroy();
      if (end + 1 < head.length) socket.unshift(head.subarray(end + 1));
      return accept(connection);
    }
  };
  socket.on('readable', onReadable);
  socket.once('close', done);
  socket.on('error', () => socket.destroy());
}

function parse(line: Buffer): Handover | undefined {
  try {
    const value: unknown = JSON.parse(line.toString('utf8'));
    return handover.Check(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
