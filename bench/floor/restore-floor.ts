/**
 * The floor: what a create and its first command cost when a VM is restored from the same template by hand. Nothing
 * of the product runs here, no API, no jail, no cgroup, no database: start QEMU, load the state, say the agent's
 * few frames, and stop the clock when the output of the first command is there.
 *
 *   node bench/floor/restore-floor.ts --template DIR --root IMAGE --scratch BASE.ext4 [--samples 20] [--warm-up 3]
 *
 * DIR is a folder of the template cache (memory, state, template.json), IMAGE a squashfs with a shell, BASE an empty
 * ext4. Needs root, for a network namespace with a tap in it, which is made once and not timed: the product takes
 * its own from a pool. FLOOR_ACCELERATOR=kvm where the template was made so. Prints {"samples_ms": [...], "steps_ms": {...}} and nothing else.
 */
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, openSync, closeSync, readFileSync, rmSync, statSync, copyFileSync } from 'node:fs';
import { createConnection } from 'node:net';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const DEADLINE_MS = 60_000;
const MAGIC = Buffer.from('\xf5releap-guest\x00\x01\xae', 'latin1');
const [OPEN, DATA, RESULT, ERROR, HELLO] = [1, 2, 5, 6, 10];

const { values } = parseArgs({
  options: {
    template: { type: 'string' },
    root: { type: 'string' },
    scratch: { type: 'string' },
    samples: { type: 'string', default: '20' },
    'warm-up': { type: 'string', default: '3' },
  },
});
const { template, root, scratch } = values;
if (template === undefined || root === undefined || scratch === undefined) {
  throw new Error(
    'usage: restore-floor.ts --template DIR --root IMAGE --scratch BASE [--samples N] [--warm-up N]',
  );
}

async function connect(path: string): Promise<Socket> {
  const deadline = Date.now() + DEADLINE_MS;
  for (;;) {
    const socket = createConnection({ path });
    try {
      await once(socket, 'connect');
      return socket;
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }
}

/** As little QMP as there can be: one command after the other, events by name. */
async function qmp(path: string) {
  const socket = await connect(path);
  const events = new Map<string, () => void>();
  const answers: ((message: Record<string, unknown>) => void)[] = [];
  let text = '';
  socket.on('data', (chunk: Buffer) => {
    const lines = (text + chunk.toString('utf8')).split('\n');
    text = lines.pop() ?? '';
    for (const line of lines.filter((line) => line !== '')) {
      const message = JSON.parse(line) as Record<string, unknown>;
      if ('event' in message) {
        const data = message['data'] as { status?: string } | undefined;
        events.get(`${String(message['event'])} ${data?.status ?? ''}`)?.();
      } else if (!('QMP' in message)) answers.shift()?.(message);
    }
  });
  const execute = async (command: string, args?: object): Promise<void> => {
    const message = await new Promise<Record<string, unknown>>((resolve) => {
      answers.push(resolve);
      socket.write(`${JSON.stringify({ execute: command, ...(args && { arguments: args }) })}\n`);
    });
    if ('error' in message) throw new Error(`${command}: ${JSON.stringify(message['error'])}`);
  };
  await execute('qmp_capabilities');
  return {
    socket,
    execute,
    event: (name: string) => new Promise<void>((resolve) => events.set(name, resolve)),
  };
}

function frame(type: number, stream: number, json: object): Buffer {
  const payload = Buffer.from(JSON.stringify(json));
  const header = Buffer.alloc(9);
  header.writeUInt32BE(payload.length, 0);
  header.writeUInt8(type, 4);
  header.writeUInt32BE(stream, 5);
  return Buffer.concat([header, payload]);
}

/** The agent's frames: calls one method at a time and gives back its result and what it printed. */
async function agent(path: string) {
  const socket = await connect(path);
  let bytes: Buffer = Buffer.alloc(0);
  let greeted: (() => void) | undefined;
  let settle: ((error: Error | undefined) => void) | undefined;
  let output = '';
  socket.on('data', (chunk: Buffer) => {
    bytes = Buffer.concat([bytes, chunk]);
    if (greeted) {
      const at = bytes.indexOf(MAGIC);
      if (at < 0) return;
      bytes = bytes.subarray(at + MAGIC.length);
    }
    while (bytes.length >= 9 && bytes.length >= 9 + bytes.readUInt32BE(0)) {
      const type = bytes.readUInt8(4);
      const payload = bytes.subarray(9, 9 + bytes.readUInt32BE(0));
      bytes = bytes.subarray(9 + payload.length);
      if (type === HELLO) {
        greeted?.();
        greeted = undefined;
      } else if (type === DATA) output += payload.subarray(1).toString('utf8');
      else if (type === RESULT) settle?.(undefined);
      else if (type === ERROR) settle?.(new Error(payload.toString('utf8')));
    }
  });
  const hello = new Promise<void>((resolve) => {
    greeted = resolve;
  });
  socket.write(
    Buffer.concat([MAGIC, frame(HELLO, 0, { protocol: 1, nonce: randomBytes(8).toString('hex') })]),
  );
  let stream = 1;
  const call = async (method: string, params: object): Promise<string> => {
    output = '';
    const done = new Promise<void>((resolve, reject) => {
      settle = (error) => (error ? reject(error) : resolve());
    });
    socket.write(frame(OPEN, stream, { method, ...params }));
    stream += 2;
    await done;
    return output;
  };
  return { socket, hello, call };
}

const { vcpus, memMib } = JSON.parse(readFileSync(join(template, 'template.json'), 'utf8')) as {
  vcpus: number;
  memMib: number;
};
const emulated = process.env['FLOOR_ACCELERATOR'] !== 'kvm';
const scratchBytes = statSync(scratch).size;
const dir = mkdtempSync(join(tmpdir(), 'floor-'));
const netns = `floor-${process.pid}`;
const emptyLayer = join(dir, 'empty.qcow2');

function qemuArguments(): string[] {
  const machine =
    'microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on,auto-kernel-cmdline=off,memory-backend=ram';
  const args = ['-nodefaults', '-no-user-config', '-nographic', '-no-reboot', '-machine', machine];
  args.push('-accel', emulated ? 'tcg,thread=multi,tb-size=128' : 'kvm');
  args.push('-cpu', emulated ? 'max,la57=off,vendor=GenuineIntel' : 'host,migratable=on');
  args.push('-smp', `${vcpus},sockets=1,cores=${vcpus},threads=1`, '-m', `${memMib}M`);
  args.push('-object', `memory-backend-file,id=ram,size=${memMib}M,mem-path=${template}/memory,share=off`);
  args.push('-qmp', `unix:${dir}/qmp,server=on,wait=off`);
  args.push('-chardev', `socket,id=agent,path=${dir}/agent,server=on,wait=off`);
  args.push('-chardev', 'null,id=console', '-device', 'isa-serial,chardev=console');
  args.push('-device', 'virtio-serial-device,id=serial,max_ports=2');
  args.push('-device', 'virtserialport,bus=serial.0,nr=1,chardev=agent,name=releap.agent');
  const layer = {
    driver: 'qcow2',
    cache: { 'no-flush': true },
    file: { driver: 'file', filename: join(dir, 'layer.qcow2') },
  };
  const backing = {
    driver: 'raw',
    'read-only': true,
    file: { driver: 'file', filename: scratch, 'read-only': true },
  };
  const nodes = [
    { driver: 'raw', 'read-only': true, file: { driver: 'file', filename: root, 'read-only': true } },
    { ...layer, backing },
    { driver: 'null-co', size: 8 * 1024 * 1024, 'read-zeroes': true },
  ];
  for (const [index, node] of nodes.entries()) {
    const id = ['root', 'scratch', 'docker'][index];
    args.push('-blockdev', JSON.stringify({ ...node, 'node-name': `disk-${id}` }));
    args.push(
      '-device',
      `virtio-blk-device,id=${id},drive=disk-${id},num-queues=1,rerror=report,werror=report`,
    );
  }
  args.push('-netdev', 'tap,id=net,ifname=tap0,script=no,downscript=no,vhost=off');
  args.push('-device', 'virtio-net-device,netdev=net,mac=02:72:6c:00:00:02,guest_announce=off');
  args.push(
    '-object',
    'rng-builtin,id=rng',
    '-device',
    'virtio-rng-device,rng=rng',
    '-S',
    '-incoming',
    'defer',
  );
  return args;
}

async function sample(): Promise<Record<string, number>> {
  const start = performance.now();
  copyFileSync(emptyLayer, join(dir, 'layer.qcow2'));
  const state = openSync(join(template ?? '', 'state'), 'r');
  const vmm = spawn(
    'nsenter',
    [`--net=/run/netns/${netns}`, '--', 'qemu-system-x86_64', ...qemuArguments()],
    {
      stdio: ['ignore', 'ignore', 'inherit', state],
    },
  );
  const exited = once(vmm, 'exit');
  try {
    const control = await qmp(join(dir, 'qmp'));
    const started = performance.now();
    await control.execute('migrate-set-capabilities', {
      capabilities: [
        { capability: 'x-ignore-shared', state: true },
        { capability: 'events', state: true },
      ],
    });
    const loaded = control.event('MIGRATION completed');
    await control.execute('migrate-incoming', { uri: 'fd:3' });
    await loaded;
    await control.execute('block_resize', { 'node-name': 'disk-scratch', size: scratchBytes });
    await control.execute('cont');
    const running = performance.now();
    const guest = await agent(join(dir, 'agent'));
    await guest.hello;
    await guest.call('configure', {
      hostname: 'floor',
      machine_id: randomBytes(16).toString('hex'),
      clock_ns: String(BigInt(Date.now()) * 1_000_000n),
      entropy: randomBytes(32).toString('base64'),
      dns: ['172.16.0.1'],
      network: { address: '172.16.0.2', prefix: 30, gateway: '172.16.0.1' },
      disks: { root: { device: 'vda' }, scratch: { device: 'vdb', bytes: scratchBytes } },
    });
    const configured = performance.now();
    const output = await guest.call('exec', { argv: ['/bin/sh', '-c', 'echo hello'] });
    const end = performance.now();
    if (output !== 'hello\n') throw new Error(`the guest printed ${JSON.stringify(output)}`);
    control.socket.destroy();
    guest.socket.destroy();
    return {
      total: end - start,
      start: started - start,
      load: running - started,
      configure: configured - running,
      exec: end - configured,
    };
  } finally {
    closeSync(state);
    vmm.kill('SIGKILL');
    await exited;
  }
}

try {
  execFileSync('ip', ['netns', 'add', netns]);
  execFileSync('ip', ['-n', netns, 'tuntap', 'add', 'tap0', 'mode', 'tap', 'vnet_hdr']);
  execFileSync('ip', ['-n', netns, 'link', 'set', 'tap0', 'up']);
  execFileSync('qemu-img', [
    'create',
    '-q',
    '-f',
    'qcow2',
    '-o',
    'lazy_refcounts=on',
    emptyLayer,
    String(scratchBytes),
  ]);
  for (let index = 0; index < Number(values['warm-up']); index += 1) await sample();
  const samples: Record<string, number>[] = [];
  for (let index = 0; index < Number(values.samples); index += 1) samples.push(await sample());
  const median = (name: string): number => {
    const sorted = samples.map((each) => each[name] ?? 0).sort((a, b) => a - b);
    return Math.round((sorted[Math.floor(sorted.length / 2)] ?? 0) * 10) / 10;
  };
  const steps = Object.fromEntries(
    ['start', 'load', 'configure', 'exec'].map((name) => [name, median(name)]),
  );
  const totals = samples.map((each) => Math.round((each['total'] ?? 0) * 10) / 10);
  process.stdout.write(`${JSON.stringify({ samples_ms: totals, steps_ms: steps })}\n`);
} finally {
  execFileSync('ip', ['netns', 'delete', netns], { stdio: 'ignore' });
  rmSync(dir, { recursive: true, force: true });
}
