/** A network slot without its network, and everything that VMs are made with, for tests that boot some. */
import { execFileSync } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { pino } from 'pino';
import { openMachines } from '../../src/machine/index.ts';
import type { VmSlot } from '../../src/machine/index.ts';
import { builtGuest } from '../../src/machine/open-machines.ts';

export const BUILD_DIR = fileURLToPath(new URL('../../../../build', import.meta.url));
/** With more than one core: guests of the service's tests have one. */
export const SHAPE = { vcpus: 2, memMib: 512 };
export const log = pino({ level: process.env['TEST_LOG'] ?? 'fatal' });

const UID_BASE = 1_900_000_000;

/** A network namespace with a tap in it; removed when disposed. */
export class TestSlot implements VmSlot, Disposable {
  readonly netns: string;
  readonly netnsPath: string;
  readonly tap = 'tap0';
  readonly uid: number;

  constructor(index: number) {
    this.netns = `releap-test-${process.pid}-${index}`;
    this.netnsPath = `/run/netns/${this.netns}`;
    this.uid = UID_BASE + (process.pid % 100_000) * 100 + index;
    execFileSync('ip', ['netns', 'add', this.netns]);
    execFileSync('ip', ['-n', this.netns, 'tuntap', 'add', this.tap, 'mode', 'tap', 'vnet_hdr']);
    execFileSync('ip', ['-n', this.netns, 'addr', 'add', '172.16.0.1/30', 'dev', this.tap]);
    execFileSync('ip', ['-n', this.netns, 'link', 'set', this.tap, 'up']);
  }

  [Symbol.dispose](): void {
    execFileSync('ip', ['netns', 'delete', this.netns]);
  }
}

/** Machines of a service with a home of its own; all its VMs, cgroups and folders go when disposed. */
export async function testMachines(
  options: { cacheDir?: string; guest?: ReturnType<typeof builtGuest> } = {},
) {
  const home = await temporaryFolder('releap-vm-');
  const open = async () =>
    await openMachines({
      home,
      folder: join(home, 'vms'),
      cacheDir: options.cacheDir ?? TEST_CACHE,
      buildDir: BUILD_DIR,
      ...(options.guest ?? builtGuest(BUILD_DIR)),
      guestNetwork: { mac: '02:72:6c:00:00:02', address: '172.16.0.2/30,172.16.0.1' },
      templateUid: UID_BASE + (process.pid % 100_000) * 100 + 99,
      log,
    });
  const opened = await open();
  const dispose = async (): Promise<void> => {
    await opened.machines.reclaim(new Set());
    await opened.machines.templates.close();
    await opened.cgroups.close();
    await rm(home, { recursive: true, force: true });
  };
  return { home, open, ...opened, [Symbol.asyncDispose]: dispose };
}
