/** `rlp doctor`: what this machine can do as a host of sandboxes. Looks only; changes nothing. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { checkAccelerator } from '../doctor/accelerator.ts';
import { checkCgroup } from '../doctor/cgroup.ts';
import { checkClock } from '../doctor/clock.ts';
import type { Check } from '../doctor/check.ts';
import { checkDigests } from '../doctor/digests.ts';
import { checkHardwareClasses } from '../doctor/hardware-classes.ts';
import { checkImageCache } from '../doctor/image-cache.ts';
import { checkKvmHost } from '../doctor/kvm-host.ts';
import { checkMachine } from '../doctor/machine.ts';
import { checkMemoryCopies } from '../doctor/memory-copies.ts';
import { checkNetwork } from '../doctor/network.ts';
import { checkPreviewCertificate } from '../doctor/preview-certificate.ts';
import { checkQuarantine } from '../doctor/quarantine.ts';
import { checkStorage } from '../doctor/storage.ts';
import { checkTools } from '../doctor/tools.ts';
import { checkObjectStores } from '../doctor/object-stores.ts';
import { checkVolumes } from '../doctor/volumes.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { releapHome } from '../settings.ts';
import { type Context, paint, print, printable, printJson } from '../terminal.ts';

const MARKS = {
  ok: ['green', 'ok'],
  warn: ['yellow', 'warn'],
  missing: ['red', 'MISSING'],
  damaged: ['red', 'DAMAGED'],
} as const;

interface DoctorOptions {
  trial: boolean;
  probe?: boolean;
  verifyDisks?: boolean;
}

/** Exit code 1 when something is missing without which sandboxes do not run here, or a disk is damaged. */
export async function doctor(context: Context, options: DoctorOptions): Promise<number> {
  const { env } = context.terminal;
  const root = fileURLToPath(new URL('../../../..', import.meta.url));
  const checks = await collect(context, root, options);
  const packages = [...new Set(checks.flatMap((check) => check.packages ?? []))];
  const ready = checks.every((check) => check.status !== 'missing');
  if (context.options.json) printJson(context, { ready, home: releapHome(env), checks, packages });
  else {
    const width = Math.max(...checks.map((check) => check.title.length));
    for (const check of checks) {
      const [color, word] = MARKS[check.status];
      const mark = paint(context.terminal, context.terminal.stdout, color, word.padEnd(7));
      print(context, `${mark}  ${check.title.padEnd(width)}  ${printable(check.detail)}`);
    }
    print(context, '');
    if (packages.length > 0) print(context, `Missing Debian packages: apt-get install ${packages.join(' ')}`);
    print(context, ready ? 'This machine can host sandboxes.' : 'This machine cannot host sandboxes yet.');
  }
  const isSound = checks.every((check) => check.status !== 'damaged');
  return ready && isSound ? EXIT.ok : EXIT.failed;
}

async function collect(
  context: Context,
  root: string,
  { trial, probe = false, verifyDisks = false }: DoctorOptions,
): Promise<Check[]> {
  const { env } = context.terminal;
  const cache = env['RELEAP_CACHE'] || join(releapHome(env), 'cache');
  using spinner = new Spinner(context, 'looking at the machine');
  const checks = [...checkMachine(), ...checkKvmHost()];
  checks.push(await checkMemoryCopies(root, context.signal));
  checks.push(await checkClock(root, context.signal));
  checks.push(checkCgroup(), ...(await checkStorage(releapHome(env), cache)));
  checks.push(await checkHardwareClasses(releapHome(env), env));
  checks.push(...(await checkImageCache(cache, env)));
  checks.push(...(await checkQuarantine(releapHome(env))));
  checks.push(...(await checkPreviewCertificate(releapHome(env))));
  checks.push(...(await checkNetwork(env, context.signal)));
  checks.push(...(await checkTools(root, env, context.signal)));
  spinner.text = 'trying what volumes need';
  checks.push(await checkVolumes(root, env, context.signal));
  checks.push(checkObjectStores(root));
  if (verifyDisks) {
    checks.push(await checkDigests(releapHome(env), context.signal, (what) => (spinner.text = what)));
  }
  spinner.text = 'starting a trial guest';
  checks.splice(3, 0, await checkAccelerator({ root, cache, trial, probe, env, signal: context.signal }));
  return checks;
}
