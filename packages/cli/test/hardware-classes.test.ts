import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { startWorld, type World } from '@releap/testing/world';
import { checkHardwareClasses, diskKind, networkText } from '../src/doctor/hardware-classes.ts';
import { home, type Home } from './home.ts';
import { json, type Outcome, rlpHere } from './rlp.ts';
import { newProject, type Project } from './world.ts';

let world: World;
let project: Project;
let folder: Home;
before(async () => {
  world = await startWorld();
  project = await newProject(world);
  folder = await home({ url: world.url, internalUrl: world.internalUrl, key: project.key });
});
after(async () => {
  await folder[Symbol.asyncDispose]();
  await world[Symbol.asyncDispose]();
});

const operator = (...args: string[]): Promise<Outcome> =>
  rlpHere(null, args, { env: { RELEAP_HOME: folder.path } });

describe('rlp class, rlp host set and rlp host show', () => {
  test('the operator defines classes, gives them to hosts, and sandboxes ask for them', async () => {
    const [arch, model] = [
      ['--arch', 'amd64'],
      ['--model', 'EPYC 9'],
    ];
    for (const args of [
      ['cpu_type', 'zen3', '--tier', '1', ...arch],
      ['cpu_type', 'zen4', '--tier', '2', ...arch, '--name', 'Zen 4', ...model],
      ['disk_class', 'nvme', '--tier', '1'],
    ]) {
      const outcome = await operator('class', 'set', ...args);
      assert.deepEqual([outcome.code, outcome.stdout], [0, `${args[1]}\n`], outcome.stderr);
    }
    const { id } = await world.runner({ facts: { classes: { cpu_type: 'zen3' }, processor: 'Some CPU' } });
    const set = await operator('host', 'set', id.slice(0, 8), '--cpu-type', 'zen4', '--disk-class', 'nvme');
    assert.equal(set.code, 0, set.stderr);
    const { stdout } = await operator('host', 'show', id);
    assert.match(stdout, /^processor +Some CPU$/m);
    assert.match(stdout, /^cpu_type +zen4, tier 2, set by the operator; the host declares zen3$/m);
    assert.match(stdout, /^network_class +none$/m);
    assert.match((await operator('host', 'ls')).stdout, /zen4, -, nvme$/m);
    assert.match((await operator('class')).stdout, /^cpu_type +zen4 +2 +amd64 +1 +Zen 4 +EPYC 9$/m);
    const back = await operator('host', 'set', id, '--cpu-type', 'declared', '--json');
    const { host } = json(back) as { host: { classes: Record<string, unknown> } };
    assert.deepEqual(host.classes['cpu_type'], { slug: 'zen3', tier: 1, source: 'host' });

    const run = await project.rlp([
      'run',
      'busybox',
      '--cpu-type',
      'zen3',
      '--disk-class',
      'nvme',
      '--no-wait',
    ]);
    assert.equal(run.code, 0, run.stderr);
    const wrong = await project.rlp(['run', 'busybox', '--network-class', 'none', '--no-wait']);
    assert.deepEqual(
      [wrong.code, wrong.stderr],
      [1, 'rlp: network_class "none" is unknown: this installation has none, leave it out\n'],
    );
    const used = await operator('class', 'rm', 'disk_class', 'nvme');
    assert.equal(used.code, 1);
    assert.match(used.stderr, /disk_class "nvme" is used by 1 host and 1 sandbox/);
    assert.equal((await operator('class', 'rm', 'cpu_type', 'zen4')).code, 0);
    assert.equal((await operator('class', 'rm', 'cpu_type', 'zen4')).code, 4);
  });

  test('wrong usage', async () => {
    for (const args of [
      ['class', 'set', 'gpu_type', 'x', '--tier', '1'],
      ['class', 'set', 'disk_class', 'x'],
      ['class', 'set', 'disk_class', 'x', '--tier', 'high'],
      ['host', 'set', 'x'],
    ])
      assert.equal((await operator(...args)).code, 2, args.join(' '));
  });
});

describe('rlp doctor', () => {
  test('shows what the hardware is, by what Linux says of it', async () => {
    const sys = await mkdtemp(join(tmpdir(), 'releap-sys-'));
    try {
      const write = async (path: string, text: string): Promise<void> => {
        await mkdir(dirname(join(sys, path)), { recursive: true });
        await writeFile(join(sys, path), text);
      };
      assert.equal(networkText(sys), 'link speed not known');
      for (const [name, speed] of [
        ['eth0', '1000\n'],
        ['eth1', '25000\n'],
        ['eth2', '-1\n'],
      ] as const) {
        await write(`class/net/${name}/speed`, speed);
        await mkdir(join(sys, `class/net/${name}/device`));
      }
      // A tap device.
      await write('class/net/tap0/speed', '100000\n');
      assert.equal(networkText(sys), 'eth1 at 25000 Mbit/s');

      await write('devices/nvme0n1/queue/rotational', '0\n');
      await mkdir(join(sys, 'devices/nvme0n1/nvme0n1p1'));
      await write('devices/sda/queue/rotational', '1\n');
      await write('devices/vda/queue/rotational', '1\n');
      await mkdir(join(sys, 'dev/block'), { recursive: true });
      await symlink(join(sys, 'devices/nvme0n1/nvme0n1p1'), join(sys, 'dev/block/259:1'));
      await symlink(join(sys, 'devices/sda'), join(sys, 'dev/block/8:0'));
      assert.equal(diskKind((259 << 8) | 1, sys), 'NVMe disk nvme0n1');
      await symlink(join(sys, 'devices/vda'), join(sys, 'dev/block/254:0'));
      assert.equal(diskKind(8 << 8, sys), 'rotating disk sda');
      assert.equal(diskKind(254 << 8, sys), 'virtual disk vda');
      assert.equal(diskKind(0x2a, sys), 'disk not known');

      const { status, detail } = await checkHardwareClasses(folder.path, { RELEAP_DISK_CLASS: 'nvme' }, sys);
      assert.equal(status, 'ok');
      assert.match(
        detail,
        /RELEAP_CPU_TYPE not set: .*; RELEAP_NETWORK_CLASS not set: eth1 at 25000 Mbit\/s; /,
      );
      assert.match(detail, /RELEAP_DISK_CLASS nvme: [^;]*, a synced write of 4 KiB takes [\d.]+ ms/);
    } finally {
      await rm(sys, { recursive: true, force: true });
    }
  });
});
