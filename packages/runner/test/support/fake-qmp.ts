/** A VMM that responds as a test tells it, over a real QMP connection. */
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { QemuDisks } from '../../src/vmm/qemu/disks.ts';
import { QmpClient } from '../../src/vmm/qemu/qmp.ts';

const GREETING = '{"QMP": {"version": {}, "capabilities": []}}\n';

export interface FakeCommand {
  execute: string;
  id: number;
  arguments?: Record<string, unknown>;
}

/** What it answers to a command; undefined for nothing, and a `FakeError` for an error. */
export type Answers = (command: FakeCommand, socket: Socket) => unknown;

export class FakeError {
  readonly desc: string;
  constructor(desc: string) {
    this.desc = desc;
  }
}

export interface FakeVmm extends AsyncDisposable {
  /** Has its socket, `qmp`, as the folder of a VM has. */
  folder: string;
  qmp: QmpClient;
  disks: QemuDisks;
  /** All commands that it received, in order. */
  commands: FakeCommand[];
}

export async function fakeVmm(answers: Answers): Promise<FakeVmm> {
  const folder = await mkdtemp(join(tmpdir(), 'releap-fake-qmp-'));
  const commands: FakeCommand[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.write(GREETING);
    let rest = '';
    socket.on('data', (chunk: Buffer) => {
      const lines = (rest + chunk.toString('utf8')).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        const command = JSON.parse(line) as FakeCommand;
        if (command.execute === 'qmp_capabilities') {
          socket.write(`{"return": {}, "id": ${command.id}}\n`);
          continue;
        }
        commands.push(command);
        const answer = answers(command, socket);
        if (answer === undefined) continue;
        const body =
          answer instanceof FakeError
            ? { error: { class: 'GenericError', desc: answer.desc } }
            : { return: answer };
        socket.write(`${JSON.stringify({ ...body, id: command.id })}\n`);
      }
    });
  });
  const path = join(folder, 'qmp');
  await new Promise<void>((resolve) => server.listen(path, resolve));
  const qmp = await QmpClient.connect(path);
  return {
    folder,
    qmp,
    disks: new QemuDisks(qmp),
    commands,
    async [Symbol.asyncDispose]() {
      qmp.close();
      for (const socket of sockets) socket.destroy();
      server.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
