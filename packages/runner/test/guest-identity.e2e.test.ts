import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { cp, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { after, before, describe, it } from 'node:test';
import { GuestClient, nowNs } from '../src/guest/index.ts';
import { ImageStore } from '../src/image/image-store.ts';
import type { RunningVm } from '../src/machine/index.ts';
import { PATIENCE_MS } from '@releap/testing/eventually';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { BUILD_DIR, log, SHAPE, testMachines, TestSlot } from './support/machines.ts';

/** On an idle machine the error is below 100; the parent was paused for longer than this. */
const CLOCK_TOLERANCE_MS = 3_000;
const CPU = { guaranteed: 0.5, max: 2 };
const machineId = (digit: string): string => digit.repeat(32);

let slots: TestSlot[];
let service: Awaited<ReturnType<typeof testMachines>>;
let rootImagePath: string;
let drawnBefore: Buffer;
/** Boot id and generation id of the parent. */
let idsBefore: string[];
const children = new Map<string, { running: RunningVm; guest: GuestClient; unwritten: string[] }>();

before(async () => {
  const images = new ImageStore({ cacheDir: TEST_CACHE, log, packagesDir: join(BUILD_DIR, 'packages') });
  rootImagePath = (await images.ensure({ type: 'builtin', name: 'busybox' })).path;
  await images.close();
  slots = [new TestSlot(0), new TestSlot(1)];
  service = await testMachines();
});
after(async () => {
  for (const { running, guest } of children.values()) {
    guest.close();
    running.vm.detach();
  }
  await service[Symbol.asyncDispose]();
  for (const slot of slots) slot[Symbol.dispose]();
});

const keep = (vmId: string): string => join(service.home, 'vms', vmId, 'keep');

async function sh(guest: GuestClient, shell: string): Promise<string> {
  const child = guest.exec({ shell, timeoutMs: 60_000 });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      text += chunk.toString();
    });
  }
  const { exitCode } = await child.exit;
  assert.equal(exitCode, 0, `${shell}: ${text}`);
  return text.trim();
}

/** Runs a sandbox `parent` for a while and leaves its memory, device state and disk. */
async function suspendParent(slot: TestSlot): Promise<void> {
  const disks = { rootImagePath, scratchMib: 64 };
  const running = await service.machines.persistent.boot({
    vmId: 'parent',
    slot,
    shape: SHAPE,
    disks,
    cpu: CPU,
  });
  const guest = await GuestClient.open(running.agentSocketPath, { log });
  await guest.configure(
    {
      hostname: 'parent',
      machineId: machineId('a'),
      clockNs: nowNs(),
      entropy: randomBytes(32),
      dns: ['172.16.0.1'],
      network: { address: '172.16.0.2', prefix: 30, gateway: '172.16.0.1' },
      disks: { root: { device: 'vda' }, scratch: { device: 'vdb', bytes: running.diskBytes.scratch } },
      env: { OLD: 'yes', WHO: 'parent' },
    },
    { deadlineMs: PATIENCE_MS },
  );
  // Draws without an end, byte by byte over a descriptor that it has had open since before, and starts nothing that
  // could draw in between: without new random numbers, each copy would draw on alike. The clocks as they pass, too.
  await sh(
    guest,
    `printf '10.1.2.3\\tmine parent # of parent\\n' >> /etc/hosts; mkfifo /dev/shm/never
    (exec 4<> /dev/shm/never; while read -r -n 16 drawn; do
      echo "$drawn" >> /dev/shm/draws; read -r up rest < /proc/uptime; echo "$up" >> /dev/shm/uptimes; read -t 0.01 -r none <&4
    done < /dev/urandom) > /dev/null 2>&1 &
    while [ "$(wc -l < /dev/shm/draws)" -lt 10 ]; do sleep 0.02; done`,
  );
  // What OpenSSH installs, with a program of the same options that makes keys.
  await sh(
    guest,
    `mkdir -p /etc/ssh; echo of the parent > /etc/ssh/ssh_host_ed25519_key; echo of the parent > /etc/ssh/ssh_host_ed25519_key.pub
    printf '#!/bin/sh\nfor last; do :; done\ncat /proc/sys/kernel/random/uuid > "$last"; echo public > "$last.pub"\n' > /usr/bin/ssh-keygen
    chmod +x /usr/bin/ssh-keygen`,
  );
  idsBefore = (await sh(guest, 'cat /proc/sys/kernel/random/boot_id /run/releap/generation')).split('\n');
  await guest.sync();
  // Not thawed by itself before the memory is saved, however long that takes: both children would have what it draws then.
  await guest.freeze({ processesOnly: true, thawAfterMs: 600_000 });
  drawnBefore = await buffer(guest.files.read('/dev/shm/draws'));
  {
    await using pausing = await service.machines.persistent.beginPause('parent', running);
    await pausing.finish();
  }
  guest.close();
  await service.machines.end('parent');
  await new Promise((resolve) => setTimeout(resolve, CLOCK_TOLERANCE_MS + 1_000));
}

/** A VM with a copy of all of its parent's state, which has a new identity. */
async function fork(vmId: string, slot: TestSlot, digit: string): Promise<void> {
  await mkdir(join(service.home, 'vms', vmId), { recursive: true, mode: 0o700 });
  await cp(keep('parent'), keep(vmId), { recursive: true });
  const running = await service.machines.persistent.resume({ vmId, slot, cpu: CPU, rootImagePath });
  const guest = await GuestClient.open(running.agentSocketPath, { log });
  const { clockNs, unwritten } = await guest.reconfigure(
    {
      hostname: vmId,
      machineId: machineId(digit),
      clockNs: nowNs(),
      entropy: randomBytes(64),
      env: { WHO: vmId },
    },
    { deadlineMs: PATIENCE_MS },
  );
  await guest.setClock(clockNs);
  children.set(vmId, { running, guest, unwritten });
}

function child(vmId: string): GuestClient {
  const entry = children.get(vmId);
  assert.ok(entry, `${vmId} was not made`);
  return entry.guest;
}

describe('two sandboxes restored from one memory', () => {
  before(async () => {
    const [first, second] = slots;
    assert.ok(first && second);
    await suspendParent(first);
    await fork('left', first, 'b');
    await fork('right', second, 'c');
  });

  it('never draw the same random numbers, though all have the same state of the generator', async () => {
    const seen: Set<string>[] = [];
    for (const vmId of ['left', 'right']) {
      // New processes: what they draw, and the places where the kernel puts a program.
      const fresh = await sh(
        child(vmId),
        `for i in 1 2 3; do od -An -tx1 -N 16 /dev/urandom; cat /proc/sys/kernel/random/uuid; grep -F '[stack]' /proc/self/maps; done
        from=$(wc -l < /dev/shm/draws); while [ "$(wc -l < /dev/shm/draws)" -lt $((from + 10)) ]; do sleep 0.02; done`,
      );
      const draws = await buffer(child(vmId).files.read('/dev/shm/draws'));
      assert.deepEqual(draws.subarray(0, drawnBefore.length), drawnBefore);
      // One may have been drawn and not written when the parent was paused.
      const own = draws.toString('latin1', drawnBefore.length).split('\n').slice(1);
      seen.push(new Set([...fresh.split('\n'), ...own.filter((line) => line.length > 8)]));
    }
    const [left, right] = seen;
    assert.ok(left && right && left.size > 16);
    assert.deepEqual(
      [...left].filter((line) => right.has(line)),
      [],
    );
  });

  it('have a boot id and a generation id of their own each, other than those of their parent and their kernel', async () => {
    const ids = async (guest: GuestClient): Promise<string[]> =>
      (
        await sh(
          guest,
          'cat /proc/sys/kernel/random/boot_id /run/releap/generation; sysctl -n kernel.random.boot_id; umount /proc/sys/kernel/random/boot_id; cat /proc/sys/kernel/random/boot_id',
        )
      ).split('\n');
    const [left, right] = [await ids(child('left')), await ids(child('right'))];
    // What `sysctl` says is what the file says; below the mount is the kernel's, which both share.
    assert.deepEqual([left[2], right[2]], [left[0], right[0]]);
    assert.equal(left[3], right[3]);
    const all = [...idsBefore, left[0], left[1], right[0], right[1], left[3]];
    assert.equal(new Set(all).size, 7, all.join(' '));
    for (const id of all) assert.match(id ?? '', /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/);
  });

  it('have host keys of an SSH server of their own each', async () => {
    const seen = new Set<string>();
    for (const vmId of ['left', 'right'])
      seen.add(
        await sh(
          child(vmId),
          'cd /etc/ssh; until [ "$(cat ssh_host_ed25519_key.pub)" = public ]; do sleep 0.05; done; cat ssh_host_ed25519_key; ls | grep -v "^ssh_host_ed25519_key" || true',
        ),
      );
    assert.equal(seen.size, 2);
    for (const key of seen) assert.match(key, /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/);
  });

  it('have their own names, in all places where the parent had its', async () => {
    for (const [vmId, digit] of [
      ['left', 'b'],
      ['right', 'c'],
    ] as const) {
      assert.deepEqual(children.get(vmId)?.unwritten, []);
      const guest = child(vmId);
      const names = await sh(guest, 'hostname; cat /proc/sys/kernel/hostname /etc/hostname /etc/machine-id');
      assert.deepEqual(names.split('\n'), [vmId, vmId, vmId, machineId(digit)]);
      assert.equal(await sh(guest, 'echo "$WHO$OLD $HOSTNAME"'), `${vmId} ${vmId}`);
      const hosts = (await sh(guest, 'cat /etc/hosts')).split('\n');
      assert.ok(hosts.includes(`172.16.0.2\t${vmId}`), hosts.join('|'));
      assert.ok(hosts.includes(`10.1.2.3\tmine ${vmId} # of parent`), hosts.join('|'));
      assert.match(await sh(guest, `ping -c 1 ${vmId}`), /\(172\.16\.0\.2\)/);
      assert.ok(!hosts.some((line) => line.replace(/#.*/, '').includes('parent')), hosts.join('|'));
    }
  });

  it('have the right time, and a clock that never goes back', async () => {
    for (const vmId of ['left', 'right']) {
      const guest = child(vmId);
      const asked = Date.now();
      const { clockNs } = await guest.thaw();
      const told = Number((clockNs ?? 0n) / 1_000_000n);
      assert.ok(
        told > asked - CLOCK_TOLERANCE_MS && told < Date.now() + CLOCK_TOLERANCE_MS,
        `${asked} .. ${Date.now()}: ${told}`,
      );
      const uptimes = (await sh(guest, 'cat /dev/shm/uptimes')).split('\n').map(Number);
      assert.deepEqual(
        uptimes,
        [...uptimes].sort((a, b) => a - b),
      );
    }
  });

  it('take the new name even where its files cannot be written, and report those', async () => {
    const guest = child('left');
    await sh(guest, 'rm /etc/hostname; mkdir -p /etc/hostname/x; mount -t tmpfs -o ro none /etc/hostname');
    await guest.freeze({ processesOnly: true });
    const { unwritten } = await guest.reconfigure({ hostname: 'other' });
    assert.match(unwritten.join(), /\/etc\/hostname/);
    assert.equal((await guest.status()).frozen, false);
    assert.equal(await sh(guest, 'hostname'), 'other');
  });
});
