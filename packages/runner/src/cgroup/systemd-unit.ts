/**
 * Units of systemd that hold cgroups of version 2. All of the hierarchy is systemd's where that runs, and it may change any cgroup but
 * those below a unit with `Delegate=`. Such a unit is made for each tree, apart from the unit of the service: what is in that ends or is
 * counted with the service, and it does not start again while cgroups in it have controllers.
 */
import { existsSync } from 'node:fs';
import { run } from '../process/index.ts';

/** A machine that shuts down is busy with other units. */
const DEADLINE_MS = 120_000;
/**
 * systemd removes the cgroup of a unit without a process, also below `Delegate=`, so it has one, which does nothing. Nothing but that ends
 * with the unit, however it ends; at a shutdown its processes end with the last of the machine, as those of no unit do. What micro-VMs may
 * have together is set, and no default applies.
 */
const FIXED = [
  'Delegate=yes',
  'DefaultDependencies=no',
  'KillMode=process',
  'OOMPolicy=continue',
  'OOMScoreAdjust=-1000',
  'TasksMax=infinity',
];
const COMMAND = ['sleep', 'infinity'];
/** Beside system.slice: an ordinary unit would share what that gets of a busy machine. */
const SLICE = '-.slice';

/** As sd_booted(3). */
export function isBootedBySystemd(): boolean {
  return existsSync('/run/systemd/system');
}

export async function isActive(unit: string): Promise<boolean> {
  return (await stateOf(unit)) === 'active';
}

async function stateOf(unit: string): Promise<string | undefined> {
  return (await show(unit, ['ActiveState'])).get('ActiveState');
}

/**
 * Starts a unit, or changes the properties of one that is active.
 * @param properties as `Name=value`, with the value as `systemctl show` prints it
 * @returns the path of its cgroup in the hierarchy
 */
export async function openUnit(name: string, description: string, properties: string[]): Promise<string> {
  const state = await stateOf(name);
  if (state !== 'active') {
    // One whose process was killed is forgotten some time after its cgroup is empty, and has the name until then.
    if (state === 'failed') await systemd('systemctl', ['reset-failed', name]);
    const options = ['--quiet', '--collect', `--unit=${name}`, `--slice=${SLICE}`, '--service-type=exec'];
    const settings = [...FIXED, ...properties].map((property) => `--property=${property}`);
    await systemd('systemd-run', [...options, `--description=${description}`, ...settings, ...COMMAND]);
  }
  const names = properties.map((property) => property.split('=', 1)[0] ?? '');
  const shown = await show(name, ['ControlGroup', ...names]);
  const has = (property: string): boolean => {
    const [key = '', value] = property.split('=');
    return shown.get(key) === value;
  };
  if (!properties.every(has)) await systemd('systemctl', ['set-property', '--runtime', name, ...properties]);
  const path = shown.get('ControlGroup');
  if (path === undefined || path === '')
    throw new Error(`systemd has made no cgroup for its unit ${name} (systemctl status ${name})`);
  return path;
}

/** Ends a unit. Idempotent. */
export async function closeUnit(name: string): Promise<void> {
  if (await isActive(name)) await systemd('systemctl', ['stop', name]);
}

async function show(name: string, properties: readonly string[]): Promise<Map<string, string>> {
  const text = await systemd('systemctl', ['show', `--property=${properties.join(',')}`, name]);
  return new Map(
    text
      .trim()
      .split('\n')
      .map((line) => {
        const at = line.indexOf('=');
        return [line.slice(0, at), line.slice(at + 1)];
      }),
  );
}

async function systemd(tool: string, args: readonly string[]): Promise<string> {
  return await run(tool, args, { deadlineMs: DEADLINE_MS });
}
