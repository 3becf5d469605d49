/** What the runner of this machine keeps although its control plane does not name it. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Check } from './check.ts';

const NAMES_SHOWN = 5;

/** No check when there is nothing to say. */
export async function checkQuarantine(home: string): Promise<Check[]> {
  const folder = join(home, 'runner/quarantine');
  const checks: Check[] = [];
  const check = (detail: string): Check => ({
    id: 'quarantine',
    title: 'Quarantine',
    status: 'warn',
    detail,
  });
  const refused = await readFile(join(folder, 'refused.json'), 'utf8').catch(() => undefined);
  if (refused !== undefined)
    checks.push(
      check(
        'the control plane does not name most of what this host holds, so nothing was touched (wrong DATABASE_URL?); ' +
          `to allow it, create ${join(folder, 'confirm')}`,
      ),
    );
  const names = (
    await Promise.all(
      ['sandboxes', 'snapshots'].map((kind) => readdir(join(folder, kind)).catch(() => [] as string[])),
    )
  ).flat();
  if (names.length > 0) {
    const shown = names.slice(0, NAMES_SHOWN).join(', ') + (names.length > NAMES_SHOWN ? ', …' : '');
    checks.push(check(`${names.length} in ${folder}, not named by the control plane: ${shown}`));
  }
  return checks;
}
