/** Makes docs/lifecycle.md from the transition table. Pure. */
import { SANDBOX_STATUSES, type SandboxStatus } from '@releap/contract';
import {
  CREATIONS,
  STATE_DEADLINES,
  TRANSIENT,
  TRANSITIONS,
  type ConditionName,
  type Effect,
  type Transition,
  type SandboxEvent,
} from '../src/sandboxes/transitions.ts';
import {
  SNAPSHOT_DEADLINE_MS,
  SNAPSHOT_TRANSITIONS,
  type SnapshotTransition,
} from '../src/snapshots/transitions.ts';

const WHEN: Record<ConditionName, string> = {
  persistent: 'persistent',
  ephemeral: 'not persistent',
  spot: 'spot',
  noVolumes: 'no volumes',
  noDockerData: 'no Docker data device',
  noGpus: 'no GPUs',
  unpausable: 'with volumes, a Docker data device or GPUs',
  diskless: 'it has no disk of its own yet',
  bootable: 'it has a bootable file system',
  hasMemory: 'it has kept memory',
  wantsRunning: 'meant to run',
  wantsPaused: 'meant to be paused',
  wantsDeleted: 'its host is to remove it',
  keptForFork: 'its host keeps it for a fork',
  forkPending: 'a fork of it is pending',
  noForkPending: 'no fork of it is pending',
  resumes: 'it is being resumed',
  restarts: 'it boots a disk that it has',
  begins: 'it has never run',
};

const EFFECTS: Record<Effect, string> = {
  assign: 'its host is told of it',
  release: 'its host has nothing of it any more',
  memory: 'its memory is kept, unless the host says that it cannot be used',
  'check-memory': 'its memory is forgotten if the host says that it cannot be used',
  'forget-memory': 'kept memory is thrown away',
  'use-memory': 'it begins with the kept memory',
  'fork-taken': 'no fork of it is pending any more',
  evicted: '`spot_evicted_at` is set',
};

const WANTS: Record<NonNullable<Transition['wants']>, string> = {
  running: 'its host is to run it',
  stopped: 'its host is to stop it',
  paused: 'its host is to pause it',
  deleted: 'its host is to remove it',
  reclaim: 'its host is to keep the disk of a persistent sandbox that has run, and nothing else',
  same: 'its host is asked again',
};

const USER = new Set<SandboxEvent>(['stop', 'start', 'pause', 'resume', 'fork', 'delete']);

/** What comes after this line is made by packages/runner/scripts/write-lifecycle.ts. */
export const HOST_PART = '## On the host';

export function renderLifecycle(): string {
  return `${[
    ...head(),
    ...diagram(),
    ...deadlines(),
    ...table('What users ask', (trigger) => USER.has(trigger)),
    ...table('What hosts report', (trigger) => trigger.startsWith('observe:')),
    ...table('What comes by itself', (trigger) => !USER.has(trigger) && !trigger.startsWith('observe:')),
    ...forks(),
    ...snapshots(),
    ...draining(),
  ]
    .join('\n')
    .trimEnd()}\n`;
}

function head(): string[] {
  return [
    '# The life of a sandbox',
    '',
    '<!-- Made by packages/control/scripts/write-lifecycle.ts. Edit packages/control/src/sandboxes/transitions.ts instead. -->',
    '',
    'Every change of a status is a row of one table',
    '([`transitions.ts`](../packages/control/src/sandboxes/transitions.ts)), and one conditional `UPDATE`: of two that come',
    'together one wins, and the other is refused with 409 and told the state. This page is made from that table.',
    '',
    '- **Nothing is lost by a try.** A start that does not succeed leads back to `stopped`, a resume back to `paused`, a',
    '  pause back to `running`; `error` says why. `failed` means that the sandbox as it is cannot go on.',
    '- **Kept memory is used once.** From the moment the guest runs again the disk moves on, and that memory is gone.',
    '- **A sandbox that stands still keeps its host**, where its disk is, and none of its cores and memory. A start or',
    '  resume takes them again in the same transaction, or is refused with 409: there is no queue to wait in.',
    '- **A host that is silent** for 60 s is lost. What was on its way or running there becomes `lost`; what is persistent',
    '  comes back with the host, in the state that was wanted last. `stopped` and `paused` sandboxes stay what they are,',
    '  and cannot be started until the host is back. The operator forgets a host that does not come back',
    '  (`rlp host forget`): what is on it fails.',
    '- **Addresses are new** after every start and resume; while it does not run a sandbox has none.',
    '- **Delete works from everywhere**, and ends in `deleted` though no host ever answers.',
    '',
  ];
}

/** The states of a start are one node: nothing but the next of them tells them apart. */
const STARTING = new Set<SandboxStatus>(['assigned', 'building', 'booting']);
const node = (status: SandboxStatus): string => (STARTING.has(status) ? 'starting' : status);

/** What is possible from nearly everywhere is told in words: drawn, it would hide the rest. */
const EVERYWHERE = new Set<SandboxEvent>(['delete', 'observe:failed', 'runner-lost', 'host-forgotten']);

function diagram(): string[] {
  const labels = new Map<string, Set<string>>();
  for (const row of TRANSITIONS) {
    if (EVERYWHERE.has(row.on) || row.to === 'same') continue;
    for (const from of row.from) {
      const arrow = `${node(from)} --> ${node(row.to)}`;
      // An ephemeral spot sandbox is deleted from wherever it is, and no host need lose one that it should have.
      const rare =
        ((row.on === 'evict' || row.on === 'drain-force') && row.to === 'deleting') ||
        (row.on === 'observe:deleted' && row.to === 'failed');
      if (rare || node(from) === node(row.to)) continue;
      labels.set(arrow, (labels.get(arrow) ?? new Set()).add(name(row.on)));
    }
  }
  return [
    '## The diagram',
    '',
    'Left out is what leads away from nearly every state: `delete` (to `deleting`, or to `deleted` where nothing has to be',
    'torn down), a failure on the host (to `failed`), the silence of the host (to `lost`), and that the operator forgets it',
    '(to `failed`). Words in brackets are what the host reports.',
    '',
    '```mermaid',
    'stateDiagram-v2',
    '    state "assigned, building, booting" as starting',
    ...creations(),
    ...[...labels].map(([arrow, triggers]) => `    ${arrow}: ${[...triggers].join(', ')}`),
    '    deleted --> [*]',
    '```',
    '',
  ];
}

/** Those that begin in the same place are one arrow. */
function creations(): string[] {
  const ways = Map.groupBy(Object.values(CREATIONS), ({ status }) => node(status));
  return [...ways].map(([to, all]) => `    [*] --> ${to}: ${all.map(({ by }) => by).join(', ')}`);
}

const name = (trigger: string): string =>
  trigger.startsWith('observe:') ? `(${trigger.slice('observe:'.length)})` : trigger;

function deadlines(): string[] {
  const rows = SANDBOX_STATUSES.filter(isTransient).map((status) => {
    const exits = TRANSITIONS.filter((row) => row.on === 'deadline' && row.from.includes(status));
    const ways = exits.map((row) => `\`${row.to}\`${conditions(row) === '' ? '' : ` if ${conditions(row)}`}`);
    return `| \`${status}\` | ${STATE_DEADLINES[status] / 1000} s | ${ways.join('; ')} |`;
  });
  return [
    '## Deadlines',
    '',
    'No state that passes may last. When its time is over it is left, whether a host answers or not.',
    '',
    '| State | Longest | Then |',
    '|---|---|---|',
    ...rows,
    '',
  ];
}

const isTransient = (status: SandboxStatus): status is (typeof TRANSIENT)[number] =>
  (TRANSIENT as readonly string[]).includes(status);

function conditions(row: Transition): string {
  return (row.when ?? []).map((condition) => WHEN[condition]).join(', ');
}

function table(title: string, chosen: (trigger: SandboxEvent) => boolean): string[] {
  const rows = TRANSITIONS.filter((row) => chosen(row.on)).map((row) => {
    const to = row.to === 'same' ? 'unchanged' : `\`${row.to}\``;
    const also = [
      ...(row.note === undefined ? [] : [row.note]),
      ...(row.wants === undefined ? [] : [WANTS[row.wants]]),
      ...(row.effects ?? []).map((effect) => EFFECTS[effect]),
      ...(row.error === undefined ? [] : [`error: ${row.error}`]),
    ];
    const from = row.from.map((status) => `\`${status}\``).join(', ');
    return `| ${from} | ${name(row.on)} | ${conditions(row)} | ${to} | ${also.join('; ')} |`;
  });
  return [`## ${title}`, '', '| From | Event | If | To | Also |', '|---|---|---|---|---|', ...rows, ''];
}

function forks(): string[] {
  return [
    '## Forks, and sandboxes made from snapshots',
    '',
    'A fork is a sandbox of its own from the first moment: it begins `assigned`, on the host of its source, and takes room',
    'there as a start does. The host takes memory and disk of the source, which stands still for a moment and goes on',
    'unchanged whatever becomes of the fork; then it says `booting`, and only then the next fork of the same source may',
    'begin. A fork of a running source settles in `running`, one of a paused source in `paused`. One that was taken and',
    'could not be resumed is `paused`, with `error`; one that could not be taken is `failed`.',
    '',
    'A source that is deleted while a fork of it is pending is `deleting` at once, and nothing is charged for it any more.',
    'Its host keeps it until the fork has what it needs or has failed (`fork-taken`), and removes it then; the deadline of',
    '`deleting` ends the wait.',
    '',
    'A sandbox made from a snapshot waits for the host that keeps the snapshot, and for no other. Until it runs',
    'the snapshot cannot be deleted. From then on the two have nothing to do with each other.',
    '',
  ];
}

const SNAPSHOT_EFFECTS: Record<NonNullable<SnapshotTransition['effects']>[number], string> = {
  lineage: 'the sandbox descends from it',
  release: 'its host has nothing of it any more',
};

function snapshots(): string[] {
  const arrows = new Map<string, string[]>();
  for (const { from, on, to } of SNAPSHOT_TRANSITIONS) {
    if (to === 'same') continue;
    for (const one of from) {
      const arrow = `${one} --> ${to}`;
      arrows.set(arrow, [...(arrows.get(arrow) ?? []), name(on)]);
    }
  }
  const rows = SNAPSHOT_TRANSITIONS.map(({ from, on, to, wants, effects, error }) => {
    const also = [
      ...(wants === undefined ? [] : ['its host is to remove it']),
      ...(effects ?? []).map((effect) => SNAPSHOT_EFFECTS[effect]),
      ...(error === undefined ? [] : [`error: ${error}`]),
    ];
    const states = from.map((status) => `\`${status}\``).join(', ');
    return `| ${states} | ${name(on)} | ${to === 'same' ? 'unchanged' : `\`${to}\``} | ${also.join('; ')} |`;
  });
  return [
    '## Snapshots',
    '',
    'A snapshot has a table of its own ([`transitions.ts`](../packages/control/src/snapshots/transitions.ts)). Snapshots of',
    `one sandbox are taken one after the other; none is pending for longer than ${SNAPSHOT_DEADLINE_MS / 1000} s. What fails costs the sandbox`,
    'nothing. A host that goes away is asked again when it returns; what was reported `ready` is never taken a second time.',
    'A deleted snapshot is seen by nobody, and is remembered until its host has removed it.',
    '',
    '```mermaid',
    'stateDiagram-v2',
    '    [*] --> pending: POST /vms/:id/snapshots',
    ...[...arrows].map(([arrow, triggers]) => `    ${arrow}: ${triggers.join(', ')}`),
    '    deleted --> [*]',
    '```',
    '',
    '| Snapshot | Event | To | Also |',
    '|---|---|---|---|',
    ...rows,
    '',
  ];
}

function draining(): string[] {
  return [
    '## Spot sandboxes, and hosts that are drained',
    '',
    'When a sandbox that is not spot finds no room anywhere, spot sandboxes of one host are evicted for it: the fewest that',
    'are enough, of equals the newest. It is placed as soon as they have gone. A start, resume or fork of one that is not spot',
    'is refused with 409 and has them evicted from its host, so that it succeeds a moment later. Nobody is evicted for a spot',
    'sandbox. One whose eviction did not succeed is left alone for a minute.',
    '',
    'A host that is drained takes nothing new: no sandbox, start, resume or fork. Its spot sandboxes are evicted, its',
    'persistent ones paused, or stopped where their memory cannot be kept; ephemeral ones go on until they end, or are',
    'deleted when the drain is forced. What comes to run there later is treated alike, until the drain is taken back.',
    '',
  ];
}
