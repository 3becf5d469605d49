/** A real control plane for the commands, with a host that follows a script. */
import { parseSandboxId } from '@releap/contract';
import {
  type Assignment,
  type Caller,
  obedient,
  type Script,
  type ScriptedRunner,
  startWorld,
  waitFor,
  type World,
} from '@releap/testing/world';
import { type HereOptions, type Outcome, rlpHere, type Target } from './rlp.ts';

/** A project of its own, whose sandboxes no other caller lists. */
export interface Project extends Target {
  call: Caller;
  projectId: string;
  /** `rlp` in this process, with the project's key. */
  rlp(args: readonly string[], options?: HereOptions): Promise<Outcome>;
  /** Creates a sandbox and waits until it runs. */
  create(name: string, body?: object): Promise<{ id: string; uuid: string }>;
  /** The name of a sandbox on its host. */
  uuidOf(id: string): string;
  /** The status of a sandbox. */
  status(id: string): Promise<string>;
}

function uuidOf(id: string): string {
  const uuid = parseSandboxId(id)?.uuid;
  if (uuid === undefined) throw new Error(`not a sandbox id: ${id}`);
  return uuid;
}

/** @param orgId its organization; absent: a new one */
export async function newProject(world: World, orgId?: string): Promise<Project> {
  const call = await world.stranger(orgId);
  const target = { url: world.url, key: call.key };
  return {
    ...target,
    call,
    projectId: call.projectId,
    rlp: (args, options) => rlpHere(target, args, options),
    async create(name, body = {}) {
      const made = await call('POST', '/vms', { image: 'busybox', name, ...body });
      if (made.status !== 200) throw new Error(made.text);
      const id = String(made.body.vm_id);
      await waitFor(call, id, 'running');
      return { id, uuid: uuidOf(id) };
    },
    uuidOf,
    status: async (id) => String((await call('GET', `/vms/${id}`)).body.status),
  };
}

/** What a host does with the sandboxes of a name; for all others it applies the assignment. */
export class Scripts {
  readonly #byName = new Map<string, Script>();

  readonly script: Script = (assignment, runner) =>
    (this.#byName.get(assignment.spec.name) ?? obedient)(assignment, runner);

  set(name: string, script: Script): void {
    this.#byName.set(name, script);
  }
}

/** Applies assignments until a sandbox is to be `desired`: then it reports something else. */
export function but(
  desired: Assignment['desired'],
  say: (assignment: Assignment, runner: ScriptedRunner) => void,
): Script {
  return (assignment, runner) =>
    assignment.desired === desired ? say(assignment, runner) : obedient(assignment, runner);
}

export interface Service extends AsyncDisposable {
  world: World;
  runner: ScriptedRunner;
  scripts: Scripts;
  project(orgId?: string): Promise<Project>;
}

/** One for all tests of a file: each takes a project of its own. */
export async function startService(options: Parameters<typeof startWorld>[0] = {}): Promise<Service> {
  const world = await startWorld(options);
  const scripts = new Scripts();
  const runner = await world.runner({ script: scripts.script });
  return {
    world,
    runner,
    scripts,
    project: (orgId) => newProject(world, orgId),
    [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
  };
}
