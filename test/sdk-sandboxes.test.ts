/** Sandboxes through the unmodified `@daytonaio/sdk`: only its URL is another one. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { after, before, describe, test } from 'node:test';
import { apiClient, daytonaOf, fails, PATIENT, sdk, type Untyped } from '@releap/testing/daytona';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { recordMethods } from './support/sdk-methods.ts';

/** GiB. Dedicated sandboxes have cores of their own: this file has one or two at a time. */
const SMALL = { cpu: 1, memory: 0.25, disk: 0.25 };

const methods = recordMethods(import.meta.filename);
let service: Service;
let daytona: Untyped;
let sandbox: Untyped;
before(async () => {
  service = await sharedService();
  daytona = daytonaOf(service);
  const request = {
    image: 'busybox',
    name: 'sdk-one',
    envVars: { COLOUR: 'blue' },
    labels: { team: 'x' },
    resources: SMALL,
  };
  sandbox = await daytona.create(request, PATIENT);
});
after(async () => {
  await service?.[Symbol.asyncDispose]();
});

const listed = async (query: object = {}): Promise<string[]> => {
  const names: string[] = [];
  for await (const one of daytona.list(query)) names.push(one.name);
  return names;
};

describe('a sandbox of the SDK', () => {
  test('create() runs it with its environment, labels and size, dedicated and not persistent', async () => {
    // Records have whole numbers.
    assert.equal(sandbox.state, 'started');
    assert.deepEqual(
      [sandbox.name, sandbox.labels.team, sandbox.cpu, sandbox.memory, sandbox.disk],
      ['sdk-one', 'x', 1, 1, 1],
    );
    const { exitCode, result } = await sandbox.process.executeCommand('echo $COLOUR; exit 3');
    assert.deepEqual([exitCode, result.trim()], [3, 'blue']);
    const { body } = await service.call('GET', `/vms/${sandbox.id}`);
    assert.deepEqual([body['mode'], body['persistent'], body['spot']], ['dedicated', false, false]);
  });

  test('get() finds it by id and by name; refreshData() and refreshActivity() go through', async () => {
    for (const key of [sandbox.id, 'sdk-one']) assert.equal((await daytona.get(key)).id, sandbox.id);
    const seen = sandbox.lastActivityAt;
    await sandbox.refreshActivity();
    await sandbox.refreshData();
    assert.notEqual(sandbox.lastActivityAt, seen);
  });

  test('list() follows cursors, and filters by prefix, label and state', async () => {
    const { id } = await service.create({ name: 'native', cpu: 0.25, mem_mib: 256, scratch_mib: 64 });
    assert.deepEqual(await listed({ limit: 1 }), ['native', 'sdk-one']);
    assert.deepEqual(await listed({ name: 'SDK-' }), ['sdk-one']);
    assert.deepEqual(await listed({ id: sandbox.id.slice(0, -3) }), ['sdk-one']);
    assert.deepEqual(await listed({ labels: { team: 'x' } }), ['sdk-one']);
    assert.deepEqual(await listed({ states: ['error', 'stopped'] }), []);
    await service.remove(id);
  });

  test('its folders are known; waiting for a state that it has ends at once', async () => {
    assert.equal(await sandbox.getUserHomeDir(), '/root');
    assert.equal(await sandbox.getUserRootDir(), '/root');
    assert.equal(await sandbox.getWorkDir(), '/');
    await daytona.start(sandbox);
    await sandbox.start();
    await sandbox.waitUntilStarted();
    await sandbox.waitForResizeComplete();
    assert.equal(sandbox.state, 'started');
    assert.equal((await sandbox.createLspServer('python', '/')).constructor.name, 'LspServer');
    assert.equal(sdk.Daytona.createAxiosInstance().defaults.baseURL, undefined);
  });

  test('commands run as the user of the create', async () => {
    const other = await daytona.create(
      { image: 'debian', user: 'nobody', ephemeral: true, resources: SMALL },
      PATIENT,
    );
    assert.equal(other.user, 'nobody');
    assert.equal((await other.process.executeCommand('id -un')).result, 'nobody\n');
    await other.stop();
    await fails(() => daytona.get(other.id), sdk.DaytonaNotFoundError, /not found/, 404);
  });

  test('its ports have preview URLs, plain and signed', async () => {
    const { url, token } = await sandbox.getPreviewLink(3000);
    assert.match(url, new RegExp(`^http://3000-${sandbox.id}\\.localhost:\\d+$`));
    const signed = await sandbox.getSignedPreviewUrl(3000, 60);
    assert.match(signed.url, new RegExp(`^http://3000-${signed.token}\\.localhost:\\d+$`));
    assert.deepEqual([signed.port, signed.token === token], [3000, false]);
    // Users add paths. Nothing listens there, but the gateway lets the request pass until the URL is expired.
    const { port } = new URL(signed.url);
    const statusOf = async (): Promise<number | undefined> => {
      const headers = { host: new URL(signed.url).host };
      const request = get({ host: '127.0.0.1', port, path: '/health', headers, agent: false });
      const [answer] = (await once(request, 'response')) as [IncomingMessage];
      answer.resume();
      return answer.statusCode;
    };
    assert.equal(await statusOf(), 502);
    await sandbox.expireSignedPreviewUrl(3000, signed.token);
    await eventually('401', async () => (await statusOf()) === 401);
  });

  test('the generated client gets the base URL of the toolbox', async () => {
    const { api_key: key, compat_url: basePath } = service.bootstrap;
    const api = new apiClient.SandboxApi(new apiClient.Configuration({ basePath, accessToken: key }));
    const { data } = await api.getToolboxProxyUrl(sandbox.id);
    assert.equal(data.url, (await service.toolboxUrl()).replace(/\/$/, ''));
  });

  test('what it refuses are errors of the classes of the SDK', async () => {
    await fails(() => daytona.get('nowhere'), sdk.DaytonaNotFoundError, /not found/, 404);
    await fails(
      () => daytona.create({ snapshot: 'Not-A-Reference' }),
      sdk.DaytonaNotFoundError,
      /"Not-A-Reference" not found/,
      404,
    );
    await fails(
      () => daytonaOf(service, { target: 'mars' }).create({ snapshot: 'busybox' }),
      sdk.DaytonaValidationError,
      /region "mars" is unknown/,
      400,
    );
    await fails(
      () => daytona.create({ snapshot: 'busybox', name: 'sdk-one' }),
      sdk.DaytonaConflictError,
      /"sdk-one" already exists/,
      409,
    );
    await fails(
      () => daytona.create({ snapshot: 'busybox', labels: { big: 'x'.repeat(1_000_000) } }),
      sdk.DaytonaValidationError,
      /labels have \d+ bytes/,
    );
    await fails(
      () => daytonaOf(service, { apiKey: 'rlp_none' }).get(sandbox.id),
      sdk.DaytonaAuthenticationError,
      /credentials/,
      401,
    );
  });

  test('each method that the service does not have fails with 501 and names the operation', async () => {
    const methods: [string, () => Promise<unknown>][] = [
      ['sandbox archive', () => sandbox.archive()],
      ['sandbox resize', () => sandbox.resize({ cpu: 2 })],
      ['sandbox labels update', () => sandbox.setLabels({ a: 'b' })],
      ['sandbox autostop interval', () => sandbox.setAutostopInterval(5)],
      ['sandbox autoarchive interval', () => sandbox.setAutoArchiveInterval(5)],
      ['sandbox autodelete interval', () => sandbox.setAutoDeleteInterval(5)],
      ['sandbox network settings', () => sandbox.updateNetworkSettings({ networkBlockAll: true })],
      ['sandbox recover', () => sandbox.recover()],
      ['sandbox pause', () => sandbox.pause()],
      ['sandbox fork', () => sandbox._experimental_fork({})],
      ['sandbox fork', () => daytona._experimental_fork(sandbox, {})],
      ['sandbox snapshot', () => sandbox._experimental_createSnapshot('x')],
      ['SSH access token creation', () => sandbox.createSshAccess(5)],
      ['SSH access token revocation', () => sandbox.revokeSshAccess('x')],
      ['SSH access token validation', () => sandbox.validateSshAccess('x')],
      ['volume list', () => daytona.volume.list()],
      ['volume lookup by name', () => daytona.volume.get('x')],
      ['volume creation', () => daytona.volume.create('x')],
      ['volume deletion', () => daytona.volume.delete({ id: 'x' })],
    ];
    for (const [name, call] of methods)
      await fails(call, sdk.DaytonaError, new RegExp(`^${name}.* is not supported`), 501);
    assert.equal((await daytona.get(sandbox.id)).state, 'started');
  });

  test('stop() ends it, start() of it is a 501, and delete() removes it', async () => {
    await sandbox.stop();
    assert.equal(sandbox.state, 'stopped');
    await sandbox.waitUntilStopped();
    await daytona.stop(sandbox);
    await fails(() => sandbox.start(), sdk.DaytonaError, /start of a stopped sandbox is not supported/, 501);
    assert.deepEqual(await listed({ states: ['stopped'] }), ['sdk-one']);
    await sandbox.delete();
    await fails(() => daytona.get('sdk-one'), sdk.DaytonaNotFoundError, /not found/);
    await service.untilNoTraceOf(sandbox.id);
  });

  test('create() of a registered snapshot has the default size; delete() ends it while it runs', async () => {
    const made = await daytona.create({ snapshot: 'busybox' }, PATIENT);
    assert.deepEqual(
      [made.state, made.snapshot, made.cpu, made.memory, made.disk],
      ['started', 'busybox', 1, 1, 3],
    );
    assert.equal((await made.process.executeCommand('echo out; echo err >&2')).exitCode, 0);
    await daytona.delete(made);
    await service.untilNoTraceOf(made.id);
  });
});

test('each method of these classes is tested', () => methods.assertComplete());
