import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { describe, it } from 'node:test';
import { LIMITS } from '@releap/contract';
import { LAYERS_MAX } from '../src/disk/disk-chain.ts';
import { DEFAULT_IMAGE_LIMITS } from '../src/image/image-limits.ts';
import { fileMaxMib, Restoring } from '../src/machine/restoring.ts';
import { commandLine, PLACEHOLDER_BYTES } from '../src/vmm/qemu/command-line.ts';
import type { MachineOptions } from '../src/vmm/qemu/command-line.ts';
import { DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';
import { OPEN_FILES_MAX } from '../src/vmm/jail.ts';
import { DESCRIPTORS, JAILED } from '../src/vmm/qemu/vmm-paths.ts';
import { identifyProcess, isAlive, killProcess, signalProcess } from '../src/vmm/process-identity.ts';
import { overheadMib, TCG_CACHE_MIB, tuning } from '../src/vmm/tuning.ts';

const MACHINE: MachineOptions = {
  vmmVersion: '10.0.2',
  accelerator: 'tcg',
  hardware: { deviceModel: DEVICE_MODEL, system: { path: '/home/system.squashfs', sha256: '5' } },
  vcpus: 2,
  memMib: 1024,
  sharing: 'private',
  mac: '02:00:00:00:00:02',
  name: '/home/a,b/vms/x',
  owner: { uid: 1234, gid: 1234 },
  paths: JAILED,
};

describe('the command line of a VMM', () => {
  it('describes the same devices whether a guest boots or is restored', () => {
    const boot = commandLine({ ...MACHINE, append: 'quiet' });
    const restore = commandLine(MACHINE);
    const devices = (args: string[]) => args.filter((_value, at) => args[at - 1] === '-device');
    assert.deepEqual(devices(boot), devices(restore));
    assert.deepEqual(
      restore.filter((arg) => !boot.includes(arg)),
      ['-S', '-incoming', 'defer'],
    );
  });

  it('shares folders from memory of its own, and boots when it is told to', () => {
    const args = commandLine({ ...MACHINE, sharing: 'own', append: 'quiet', shares: ['one', 'two'] });
    const value = (name: string, of: string) =>
      args.find((arg, at) => args[at - 1] === name && arg.includes(of));
    assert.match(value('-object', 'id=ram') ?? '', /^memory-backend-memfd,.*share=on$/);
    assert.equal(value('-chardev', 'share-1'), 'socket,id=share-1,fd=13');
    assert.match(value('-device', 'tag=two') ?? '', /^vhost-user-fs-device,chardev=share-1,/);
    assert.ok(args.includes('-S') && !args.includes('-incoming'));
  });

  const cpuOf = (deviceModel: number, accelerator: 'kvm' | 'tcg') => {
    const args = commandLine({ ...MACHINE, accelerator, hardware: { ...MACHINE.hardware, deviceModel } });
    return args[args.indexOf('-cpu') + 1];
  };

  it('offers tenants neither nested virtualisation nor performance counters', () => {
    assert.equal(cpuOf(DEVICE_MODEL, 'kvm'), 'host,migratable=on,vmx=off,svm=off,pmu=off,la57=off');
    for (const flag of ['vmx=off', 'svm=off', 'pmu=off'])
      assert.ok(cpuOf(DEVICE_MODEL, 'tcg')?.split(',').includes(flag), flag);
  });

  it('keeps the processor of a released device model', () => {
    assert.equal(cpuOf(4, 'kvm'), 'host,migratable=on');
    assert.equal(cpuOf(4, 'tcg'), 'max,la57=off,vendor=GenuineIntel,erms=off,fsrm=off');
  });

  const machineOf = (deviceModel: number, accelerator: 'kvm' | 'tcg') => {
    const args = commandLine({ ...MACHINE, accelerator, hardware: { ...MACHINE.hardware, deviceModel } });
    return args[args.indexOf('-machine') + 1];
  };

  it('keeps the machine of a released device model; since then, under KVM, disks have a thread and there is no PC timer', () => {
    const former =
      'microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on,auto-kernel-cmdline=off,memory-backend=ram';
    for (const model of [4, 5])
      assert.deepEqual([machineOf(model, 'kvm'), machineOf(model, 'tcg')], [former, former]);
    assert.equal(cpuOf(5, 'kvm'), 'host,migratable=on,vmx=off,svm=off,pmu=off,la57=off');
    assert.equal(machineOf(DEVICE_MODEL, 'tcg'), former);
    const threads = (deviceModel: number, accelerator: 'kvm' | 'tcg') =>
      commandLine({ ...MACHINE, accelerator, hardware: { ...MACHINE.hardware, deviceModel } }).filter((arg) =>
        /^virtio-blk-device.*,iothread=disks$/.test(arg),
      ).length;
    assert.deepEqual(
      [threads(5, 'kvm'), threads(DEVICE_MODEL, 'tcg'), threads(DEVICE_MODEL, 'kvm')],
      [0, 0, 6],
    );
    assert.equal(machineOf(DEVICE_MODEL, 'kvm'), former.replace('pit=on,pic=on', 'pit=off,pic=off'));
  });

  it('may open as many files as the largest sandbox needs', () => {
    const shares = Array.from({ length: LIMITS.volumesPerSandbox }, (_none, at) => `tag-${at}`);
    const args = commandLine({
      ...MACHINE,
      accelerator: 'kvm',
      vcpus: 64,
      sharing: 'own',
      append: 'quiet',
      shares,
    });
    const count = (of: RegExp): number => args.filter((arg) => of.test(arg)).length;
    // A descriptor of KVM and one of its statistics; each queue has a notifier of the guest and one of the host.
    const [vcpus, notifiers] = [64 * 2, 2];
    const disks = count(/^virtio-blk-device/) * notifiers;
    const serialPorts = Number(/max_ports=(\d+)/.exec(args.join(' '))?.[1]) * 2 + 2;
    const others = (serialPorts + 3) * notifiers;
    // Connection, slave channel, and the notifiers and error descriptor of two queues.
    const served = count(/^vhost-user-fs-device/) * (2 + 2 * 3);
    // Standard streams, KVM, its machine, inherited files and sockets with their clients, event loops.
    const rest = 3 + 2 + Object.keys(DESCRIPTORS).length * 2 + 16;
    // A scratch disk of as many layers as it may have, one more in a capture, its base, the parts of the root image and `vdc`.
    const files = LAYERS_MAX + 2 + DEFAULT_IMAGE_LIMITS.stackLayers + 2 + 2;
    assert.ok(disks > 0 && served > 0 && serialPorts > 2);
    const needed = vcpus + disks + others + served + rest + files;
    assert.ok(needed * 1.5 < OPEN_FILES_MAX, `${needed} of ${OPEN_FILES_MAX}`);
  });

  it('jails the VMM, as an unprivileged user, with its sandbox on', () => {
    const args = commandLine(MACHINE);
    const value = (name: string) => args[args.indexOf(name) + 1];
    assert.equal(value('-run-with'), 'chroot=/vm,user=1234:1234');
    const older = commandLine({ ...MACHINE, vmmVersion: '8.2.2' });
    assert.deepEqual(older.slice(older.indexOf('-chroot')).slice(0, 4), [
      '-chroot',
      '/vm',
      '-runas',
      '1234:1234',
    ]);
    assert.match(value('-sandbox') ?? '', /^on,.*spawn=deny.*resourcecontrol=deny/);
    assert.ok(args.includes('-nodefaults') && args.includes('-no-user-config'));
  });

  it('opens no file of a sandbox before it is jailed: its disks are placeholders', () => {
    const args = commandLine(MACHINE);
    const nodes = args
      .filter((_value, at) => args[at - 1] === '-blockdev')
      .map((node) => JSON.parse(node) as object);
    assert.deepEqual(
      nodes.map((node) => (node as { driver: string }).driver),
      ['null-co', 'null-co', 'null-co', 'raw', 'null-co', 'null-co'],
    );
    const [system] = nodes.filter((node) => (node as { driver: string }).driver === 'raw');
    assert.deepEqual((system as { file: unknown }).file, {
      driver: 'file',
      filename: '/dev/fd/5',
      'read-only': true,
      locking: 'off',
    });
  });

  it('lets the VMM write files that hold a full disk of any size that there can be', () => {
    for (const gib of [1, 300, PLACEHOLDER_BYTES / 2 ** 30]) {
      const args = ['measure', '-O', 'qcow2', '--size', `${gib}G`, '--output', 'json'];
      const measured = JSON.parse(execFileSync('qemu-img', args, { encoding: 'utf8' })) as object;
      const full = (measured as Record<string, number>)['fully-allocated'] ?? 0;
      assert.ok(full > gib * 2 ** 30 && full <= fileMaxMib(gib * 1024) * 2 ** 20, `${gib} GiB`);
    }
  });

  it('counts the page tables of its guest: those of the host, and under KVM those of the processor too', () => {
    const gib64 = 64 * 1024;
    const more = (accelerator: 'kvm' | 'tcg') =>
      overheadMib(accelerator, gib64) - overheadMib(accelerator, 0);
    assert.deepEqual([more('tcg'), more('kvm')], [128, 256]);
    assert.equal(overheadMib('tcg', 0) - overheadMib('kvm', 0), TCG_CACHE_MIB);
  });

  it('lets the memory of a guest count twice where all of it is mapped from a file, and holes of a file that are', () => {
    const restoring = new Restoring({ platform: { accelerator: 'kvm' } } as never);
    const shape = { vcpus: 1, memMib: 1024, reservedMib: 24 };
    const once = 1000 + overheadMib('kvm', 1024);
    assert.equal(restoring.memoryMib({ shape }), 1000 + once);
    assert.equal(restoring.memoryMib({ shape, fileHolesMib: 3 }), 3 + once);
    // It has booted, and may have used what is reserved.
    assert.equal(
      restoring.memoryMib({ shape, fileHolesMib: 0, shares: [{ tag: 'a' }] }),
      once + tuning('kvm').bootMib,
    );
  });

  it('keeps commas in its name out of the option syntax', () => {
    const args = commandLine(MACHINE);
    assert.equal(args[args.indexOf('-name') + 1], '/home/a,,b/vms/x');
  });

  it('names no path of the host but in its name: what it opens is inherited', () => {
    const args = commandLine({ ...MACHINE, name: 'vm', append: 'quiet' });
    const paths = args.flatMap((arg) => arg.match(/\/[\w/.-]+/g) ?? []);
    assert.ok(paths.length > 0);
    assert.deepEqual(
      paths.filter((path) => !/^\/dev\/fd\/\d+$|^\/vm$/.test(path)),
      [],
    );
  });

  it('never lets a guest write its root image or share its memory', () => {
    const args = commandLine(MACHINE);
    const root = args.filter((_value, at) => args[at - 1] === '-blockdev')[0] ?? '';
    assert.equal((JSON.parse(root) as { 'read-only': boolean })['read-only'], true);
    assert.match(
      args.find((arg) => arg.startsWith('memory-backend-file')) ?? '',
      /share=off,readonly=on,rom=off,align=2M$/,
    );
  });
});

describe('a process identity', () => {
  it('follows one process until it has ended, and never the next one with its pid', async () => {
    const child = spawn('sleep', ['60'], { stdio: 'ignore' });
    const exited = new Promise((resolve) => child.once('exit', resolve));
    const identity = identifyProcess(child.pid ?? 0);
    assert.equal(isAlive(identity), true);
    const impostor = { ...identity, startTicks: String(Number(identity.startTicks) - 1) };
    assert.equal(isAlive(impostor), false);
    assert.equal(signalProcess(impostor, 'SIGKILL'), false);
    assert.equal(isAlive({ ...identity, bootId: 'another boot' }), false);
    await killProcess(identity, 60_000);
    await exited;
    assert.equal(isAlive(identity), false);
    assert.throws(() => identifyProcess(identity.pid), /no process/);
  });

  it('has the right age, also on a host that was suspended since it was booted', () => {
    const module = new URL('../src/vmm/process-identity.ts', import.meta.url).href;
    const script = `import(${JSON.stringify(module)}).then(({ ageMicros, identifyProcess }) =>
      console.log(ageMicros(identifyProcess(process.pid))))`;
    // In it the clock that counts suspensions is a day later than the one that does not, as after a suspension.
    const suspended = ['--time', '--boottime', '86400', '--fork', process.execPath, '-e', script];
    const age = Number(execFileSync('unshare', suspended, { encoding: 'utf8' }));
    assert.ok(age > 0 && age < 3_600_000_000, `${age} microseconds`);
  });

  it('takes a process that has ended and was not waited for as dead', async () => {
    // The shell never waits for its child.
    const shell = spawn('sh', ['-c', 'sleep 0 & echo $!; exec sleep 60'], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    try {
      const text = await new Promise<string>((resolve) =>
        shell.stdout.once('data', (chunk: Buffer) => resolve(chunk.toString())),
      );
      const pid = Number(text);
      const gone = (): boolean => {
        try {
          return !isAlive(identifyProcess(pid));
        } catch {
          return true;
        }
      };
      while (!gone()) await new Promise((resolve) => setTimeout(resolve, 5));
    } finally {
      shell.kill('SIGKILL');
    }
  });
});
