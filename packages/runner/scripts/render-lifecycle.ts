/** Makes the part of docs/lifecycle.md on hosts from the tables of the runner. Pure. */
import { CONVERGENCE, LAST_STEPS, OUTCOMES, RECOVERY } from '../src/reconcile/sandbox-table.ts';
import type { Outcome, Row } from '../src/reconcile/sandbox-table.ts';

/** What comes before this line is made by packages/control/scripts/write-lifecycle.ts. */
export const HOST_PART = '## On the host';

export function renderHostLifecycle(): string {
  return `${[
    HOST_PART,
    '',
    '<!-- Made by packages/runner/scripts/write-lifecycle.ts. Edit packages/runner/src/reconcile/sandbox-table.ts instead. -->',
    '',
    'A runner takes steps until a sandbox is what control wants. Which step comes next is looked up in two tables',
    '([`sandbox-table.ts`](../packages/runner/src/reconcile/sandbox-table.ts)) by what is wanted and what is there; the',
    'first row that matches counts. A newer assignment interrupts the step under way. A property test crashes the runner',
    'at every step: no byte of a persistent sandbox is lost, no VM runs twice, every state that passes is left, and',
    '`delete` always works.',
    '',
    '"Suspend image" is the saved memory and device state of a paused sandbox. It is consumed by the first VM that',
    'continues from it.',
    '',
    '### After a start of the runner',
    '',
    'VMs outlive their runner. A new runner first finds out what the previous one left, in whatever step it ended.',
    '',
    ...table(RECOVERY, 'Step', stepName),
    '',
    '### Towards what control wants',
    '',
    'A step that fails is the last; what is left is reported.',
    '',
    ...table(CONVERGENCE, 'Step', stepName),
    '',
    '### What is reported when a VM does not run',
    '',
    'The cause is reported as the error, where the table names no other.',
    '',
    ...table(OUTCOMES, 'Reported', outcome),
  ].join('\n')}\n`;
}

const stepName = (step: Parameters<typeof LAST_STEPS.has>[0]): string =>
  LAST_STEPS.has(step) ? `\`${step}\`` : `\`${step}\`, then look again`;

function outcome({ status, error, memoryLost, memoryBlocked }: Outcome): string {
  return [
    `\`${status}\``,
    ...(memoryLost ? ['without memory'] : []),
    ...(memoryBlocked ? ['with memory that is blocked'] : []),
    ...(error === undefined ? [] : [`"${error}"`]),
  ].join(', ');
}

function table<F, To>(rows: readonly Row<F, To>[], title: string, show: (to: To) => string): string[] {
  return [
    `| If | ${title} | Why |`,
    '|---|---|---|',
    ...rows.map(({ when, to, why }) => `| ${conditions(when)} | ${show(to)} | ${why} |`),
  ];
}

/** How a fact is called in the page; those that are not here go by their name. */
const YES: Record<string, [yes: string, no: string]> = {
  persistent: ['persistent', 'ephemeral'],
  disk: ['it has a disk', 'it has no disk'],
  memoryConsumed: ['its VM continued from memory', 'its VM did not continue from memory'],
  hasManifest: ['its root image is known', 'its root image is not known'],
  hasRun: ['it has run', 'it has not run yet'],
  hostRestarted: ['the host was restarted', 'the host was not restarted'],
  canPause: ['it can be paused', 'it has a Docker data device'],
  guestEnded: ['the guest powered itself off', 'the guest did not power itself off'],
};
const NAMES: Record<string, string> = {
  desired: 'wanted',
  startFrom: 'start from',
  status: 'reported last',
  vm: 'VM',
  memory: 'suspend image',
  origin: 'copy of a',
  cause: 'cause',
};

function conditions(when: object): string {
  const all = Object.entries(when).map(([name, value]) => {
    if (typeof value === 'boolean') return YES[name]?.[value ? 0 : 1] ?? name;
    const values = (Array.isArray(value) ? value : [value]).map((one) => `\`${String(one)}\``);
    return `${NAMES[name] ?? name} ${values.join(' or ')}`;
  });
  return all.length === 0 ? 'otherwise' : all.join(', ');
}
