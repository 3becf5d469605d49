/**
 * The floor: what a create or a resume costs with QEMU and the guest alone. Restores a template, or the suspend image
 * of a paused sandbox, by hand (plain spawn, QMP, one message to the agent) and runs `true` in it. No jail, no
 * cgroup, no record, no API, no code of the runner on the way; the network namespace, the taps and the disks are there
 * before the clock starts.
 *
 *   unshare --net -- node restore.ts FOLDER      where FOLDER/floor.json is a `FloorMachine`
 *
 * Each line on standard input is a number: so many guests are restored at once. The answer is one line of JSON, the
 * milliseconds of each from the start of its QEMU to the answer of its `true`. After the line `hold`, one guest is restored and
 * stays; each further line runs `true` in it, and the answer has the milliseconds from the request to the agent's answer.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, copyFileSync, openSync, readFileSync, rmSync } from 'node:fs';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Agent, ATTEMPT_DEADLINE_MS, connected, type Greeting } from './agent.ts';

/** All that is known before the clock starts. `{slot}` is replaced by the number of a guest. */
export interface FloorMachine {
  accelerator: 'kvm' | 'tcg';
  slots: number;
  qemu: string;
  args: string[];
  env: Record<string, string>;
  /** Device state, handed to QEMU as descriptor 3. */
  state: string;
  /** The initial write layer of a guest, copied for each. */
  layer: string;
  /** Name of the scratch disk's top node. */
  scratchNode: string;
  /** Whether that has to be activated before its size can be set. */
  activate: boolean;
  /** What a guest must be shown as the size of its disk; absent where it knows. */
  resizeTo?: number;
  greeting: Greeting;
}

const folder = process.argv[2] ?? '';
const machine = JSON.parse(readFileSync(join(folder, 'floor.json'), 'utf8')) as FloorMachine;

/** QMP with every answer and event on a line; gives back the first line that `wanted` accepts. */
function monitor(socket: Socket): {
  send(...commands: object[]): void;
  line(wanted: (message: Record<string, unknown>) => boolean): Promise<void>;
} {
  const waits: { wanted: (message: Record<string, unknown>) => boolean; done: () => void }[] = [];
  createInterface(socket).on('line', (text) => {
    const message = JSON.parse(text) as Record<string, unknown>;
    if ('error' in message) throw new Error(`QMP: ${text}`);
    for (const wait of waits) if (wait.wanted(message)) wait.done();
  });
  return {
    send: (...commands) => socket.write(commands.map((command) => `${JSON.stringify(command)}\n`).join('')),
    line: (wanted) => new Promise((done) => waits.push({ wanted, done })),
  };
}

const migration = (message: Record<string, unknown>): boolean =>
  message['event'] === 'MIGRATION' &&
  (message['data'] as Record<string, unknown> | undefined)?.['status'] === 'completed';

const running = new Set<ChildProcess>();

const since = (start: bigint): number => Number(process.hrtime.bigint() - start) / 1e6;
const answer = (milliseconds: number[]): void =>
  void process.stdout.write(`${JSON.stringify(milliseconds)}\n`);

/** @param use what else is done with the guest before it ends */
async function restore(slot: number, use?: (agent: Agent) => Promise<void>): Promise<number> {
  const at = (name: string): string => join(folder, `${slot}-${name}`);
  copyFileSync(machine.layer, at('scratch.qcow2'));
  const state = openSync(machine.state, 'r');
  const log = openSync(at('qemu.log'), 'w');
  const args = machine.args.map((arg) => arg.replaceAll('{slot}', String(slot)));
  const start = process.hrtime.bigint();
  const qemu = spawn(machine.qemu, args, {
    env: { ...process.env, ...machine.env },
    stdio: ['ignore', log, log, state],
  });
  const exited = once(qemu, 'exit');
  running.add(qemu);
  const sockets: Socket[] = [];
  const open = async (name: string): Promise<Socket> => {
    const socket = await connected(at(name));
    sockets.push(socket);
    return socket;
  };
  const guest = async (): Promise<{ took: number; agent: Agent }> => {
    const qmp = monitor(await open('qmp'));
    const loaded = qmp.line(migration);
    const continued = qmp.line(({ id }) => id === 'cont');
    qmp.send(
      { execute: 'qmp_capabilities' },
      {
        execute: 'migrate-set-capabilities',
        arguments: {
          capabilities: [{ capability: 'events', state: true }],
        },
      },
      { execute: 'migrate-incoming', arguments: { uri: 'fd:3' } },
    );
    const agent = new Agent(await open('agent'));
    await loaded;
    const size = machine.resizeTo;
    qmp.send(
      ...(size === undefined
        ? []
        : [
            // From QEMU 10 on, disks that were there before the state was loaded are inactive until the guest runs.
            ...(machine.activate
              ? [
                  {
                    execute: 'blockdev-set-active',
                    arguments: { 'node-name': machine.scratchNode, active: true },
                  },
                ]
              : []),
            { execute: 'block_resize', arguments: { 'node-name': machine.scratchNode, size } },
          ]),
      { execute: 'cont', id: 'cont' },
    );
    await Promise.all([continued, agent.greet(machine.greeting).then(() => agent.run('true'))]);
    return { took: since(start), agent };
  };
  const late = new Promise<never>((_resolve, reject) => {
    setTimeout(() => reject(new Error('no answer in time')), ATTEMPT_DEADLINE_MS).unref();
  });
  const died = exited.then(() => Promise.reject(new Error('QEMU ended')));
  try {
    const { took, agent } = await Promise.race([guest(), died, late]);
    if (use !== undefined) await Promise.race([use(agent), died]);
    return took;
  } catch (error) {
    const said = readFileSync(at('qemu.log'), 'utf8').slice(-1000);
    throw new Error(`the floor's guest ${slot}: ${(error as Error).message} ${said}`, { cause: error });
  } finally {
    for (const socket of sockets) socket.destroy();
    qemu.kill('SIGKILL');
    await exited;
    running.delete(qemu);
    closeSync(state);
    closeSync(log);
    for (const name of ['qmp', 'agent', 'console', 'scratch.qcow2', 'qemu.log'])
      rmSync(at(name), { force: true });
  }
}

// Our parent has ended: no guest may remain.
process.stdin.once('end', () => process.exit(0));
process.once('exit', () => {
  for (const qemu of running) qemu.kill('SIGKILL');
});
for (let slot = 0; slot < machine.slots; slot++) {
  execFileSync('ip', ['tuntap', 'add', `tap${slot}`, 'mode', 'tap']);
  execFileSync('ip', ['link', 'set', `tap${slot}`, 'up']);
}
process.stdout.write('ready\n');
const lines = createInterface(process.stdin)[Symbol.asyncIterator]();
for (let line = await lines.next(); line.done !== true; line = await lines.next()) {
  if (line.value !== 'hold') {
    const count = Math.min(Number(line.value), machine.slots);
    answer(await Promise.all(Array.from({ length: count }, (_, slot) => restore(slot))));
    continue;
  }
  await restore(0, async (agent) => {
    answer([]);
    while ((await lines.next()).done !== true) {
      const start = process.hrtime.bigint();
      await agent.run('true');
      answer([since(start)]);
    }
  });
}
