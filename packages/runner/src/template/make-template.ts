import { chown, mkdir, open, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { BootWatch } from '@releap/contract/boot-watch';
import type { Logger } from 'pino';
import { run } from '../process/index.ts';
import { HOSTD } from '../host/hostd.ts';
import { DEADLINES_MS, tuning } from '../vmm/tuning.ts';
import { awaitAgent } from './agent-hello.ts';
import type { Platform, MachineSize } from './machine-size.ts';

/** Files of a template; the others in its folder are those of the boot. */
const PARTS: ReadonlySet<string> = new Set(['memory', 'state']);
/** Of its console, in an error message. */
const CONSOLE_TAIL = 600;

/** What an agent writes to the console before it ends a boot whose kernel has measured its timers wrongly. */
const USELESS_BOOT = 'releap: this boot is of no use';

/** The host held the guest up while its kernel measured its timers. The next boot may be a good one. */
export class UselessBootError extends Error {}

/**
 * Boots a guest with placeholder disks, and saves its memory (`memory`) and device state (`state`) in `folder`.
 * @param folder exists and is empty
 * @throws UselessBootError when another boot may succeed
 * @param options.jailUid unprivileged user and group of the VMM
 * @param options.cgroupProcs `cgroup.procs` files of the VMM. The owner of the cgroup kills what a crash of the runner leaves
 */
export async function makeTemplate(
  platform: Platform,
  shape: MachineSize,
  folder: string,
  options: { jailUid: number; cgroupProcs: string[]; log: Logger; signal?: AbortSignal | undefined },
): Promise<void> {
  const { jailUid, log, signal } = options;
  const jail = join(folder, 'jail');
  const bootMemory = join(folder, 'boot-memory');
  await mkdir(jail, { mode: 0o700 });
  await chown(jail, jailUid, jailUid);
  await using memory = await open(bootMemory, 'wx+', 0o600);
  await memory.truncate(shape.memMib * 1024 * 1024);
  const { boot, settleMs } = tuning(platform.accelerator);
  using watch = new BootWatch(boot);
  const started = performance.now();
  const vm = await platform.driver.start({
    vmm: platform.vmm,
    machine: {
      accelerator: platform.accelerator,
      hardware: platform.hardware,
      vcpus: shape.vcpus,
      memMib: shape.memMib,
      sharing: 'shared',
      mac: platform.mac,
    },
    boot: {
      kernel: platform.kernel.path,
      initramfs: platform.initramfs.path,
      append: platform.driver.kernelAppend({ ...platform, sharesFolders: false }),
    },
    memoryFd: memory.fd,
    dir: folder,
    jail: { root: jail, uid: jailUid, gid: jailUid },
    netns: 'new',
    tap: 'tap0',
    cgroupProcs: options.cgroupProcs,
    fileMaxMib: shape.memMib + 64,
    onConsole: (chunk) => watch.add(chunk.toString('latin1')),
    signal,
    log,
  });
  try {
    await awaitAgent(vm.agentSocketPath, {
      deadlineMs: boot.total,
      alive: () => !vm.exited,
      signal: signal === undefined ? watch.signal : AbortSignal.any([watch.signal, signal]),
    }).catch((error: unknown) => {
      const Failure = watch.console.includes(USELESS_BOOT) ? UselessBootError : Error;
      const tail = JSON.stringify(watch.console.trim().slice(-CONSOLE_TAIL));
      throw new Failure(
        `a template guest did not boot: ${(error as Error).message}; its console ended: ${tail}`,
      );
    });
    watch[Symbol.dispose]();
    await sleep(settleMs, undefined, { signal });
    await vm.stop();
    await using state = await vm.prepareState({ root: jail, uid: jailUid });
    await state.save();
    await state.copyTo(join(folder, 'state'));
  } finally {
    await vm.kill();
  }
  await run(HOSTD, ['compact', bootMemory, join(folder, 'memory')], {
    deadlineMs: DEADLINES_MS.compact,
    signal,
  });
  for (const name of await readdir(folder)) {
    if (!PARTS.has(name)) await rm(join(folder, name), { recursive: true, force: true });
  }
  log.info({ ...shape, took_ms: Math.round(performance.now() - started) }, 'template made');
}
