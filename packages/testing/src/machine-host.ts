/**
 * A host whose sandboxes are the machine of the tests: their status follows a script, and operations in them
 * are real. A gateway leads to the runner's own data server and toolbox, and these to an agent of the guest that
 * runs as an ordinary process: commands run here, files are written here, paths are paths here.
 */
import { randomUUID } from 'node:crypto';
import path from 'node:path';
import { type Gateway, startGateway } from '@releap/gateway';
import {
  LogFile,
  type LogKind,
  readLog,
  registerLogs,
  registerPortStreams,
  registerToolbox,
  startDataServer,
} from '@releap/runner/data';
import { credentialOf, dataKeyOf, GATEWAY_TOKEN, opens } from './credentials.ts';
import { startAgent, type TestAgent } from './guest-agent.ts';
import { quiet } from './logging.ts';
import { freePort } from './ports.ts';
import { REGION, type RunnerOptions, type ScriptedRunner, startWorld, type World } from './world.ts';

type WorldOptions = NonNullable<Parameters<typeof startWorld>[0]>;

export interface MachineHost extends AsyncDisposable {
  world: World;
  runner: ScriptedRunner;
  gateway: Gateway;
  agent: TestAgent;
  /** The open log of a sandbox, by its UUID; opened when it was not. */
  log(uuid: string, kind: LogKind): LogFile;
  /** Closes a log, as the end of a sandbox and of its runner does. What it holds stays. */
  closeLog(uuid: string, kind: LogKind): Promise<void>;
}

/** A control plane with this one host, and a gateway. */
export async function startMachineHost(
  options: WorldOptions = {},
  runnerOptions: Partial<RunnerOptions> = {},
): Promise<MachineHost> {
  await using stack = new AsyncDisposableStack();
  const port = await freePort();
  const world = stack.use(
    await startWorld({
      ...options,
      region: { id: REGION, name: 'Here', toolboxProxyUrl: `http://127.0.0.1:${port}/toolbox` },
    }),
  );
  const agent = stack.use(await startAgent());
  const id = randomUUID();
  const logs = new Map<string, LogFile>();
  const logPath = (uuid: string, kind: LogKind): string => path.join(agent.folder, `${uuid}.${kind}.log`);
  const closeLog = async (uuid: string, kind: LogKind): Promise<void> => {
    const file = logPath(uuid, kind);
    await logs.get(file)?.close();
    logs.delete(file);
  };
  const client = await agent.connect();
  const data = await startDataServer({
    socketPath: path.join(agent.folder, 'data.sock'),
    verify: async (token, uuid) =>
      opens(await dataKeyOf(world.internalUrl, credentialOf(id)), token, id, uuid),
    async register(app) {
      registerLogs(app, {
        read: (uuid, kind) => readLog(logPath(uuid, kind)),
        live: (uuid, kind) => logs.get(logPath(uuid, kind)),
      });
      registerPortStreams(app, () => ({ address: '127.0.0.2', guest: async () => client }));
      await registerToolbox(app, {
        lookup: () => client,
        entrypointLog: (uuid) => logs.get(logPath(uuid, 'entrypoint')),
        log: quiet,
      });
    },
    log: quiet,
  });
  stack.defer(() => data.close());
  stack.defer(async () => {
    for (const log of logs.values()) await log.close();
  });
  const gateway = await startGateway({
    listen: { host: '127.0.0.1', port },
    controlUrl: world.internalUrl,
    credential: async () => GATEWAY_TOKEN,
    log: quiet,
    limits: { graceMs: 100 },
  });
  stack.defer(() => gateway.close());
  const runner = await world.runner({ ...runnerOptions, id, hello: { data_url: data.url } });
  const owned = stack.move();
  return {
    world,
    runner,
    gateway,
    agent,
    log(uuid, kind) {
      const file = logPath(uuid, kind);
      const log = logs.get(file) ?? new LogFile(file);
      logs.set(file, log);
      return log;
    },
    closeLog,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}
