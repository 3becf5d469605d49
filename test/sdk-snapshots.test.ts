/** Snapshots, the declarative builder and previews through the unmodified `@daytonaio/sdk`. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { apiClient, daytonaOf, fails, PATIENT, sdk, type Untyped } from '@releap/testing/daytona';
import { temporaryFolder, writeOciLayout } from '@releap/testing/oci';
import { startRegistry, type TestRegistry } from '@releap/testing/registry';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { appImage } from './support/app-image.ts';
import { recordMethods } from './support/sdk-methods.ts';

/** GiB. */
const SMALL = { cpu: 1, memory: 0.25, disk: 0.25 };
const PORT = 8080;

const methods = recordMethods(import.meta.filename);
let service: Service;
let folder: Awaited<ReturnType<typeof temporaryFolder>>;
let registry: TestRegistry;
let daytona: Untyped;
let base: string;
before(async () => {
  folder = await temporaryFolder();
  registry = await startRegistry(folder.path);
  const layout = join(folder.path, 'app');
  await writeOciLayout(layout, await appImage(), { config: { Env: ['PATH=/bin:/usr/bin'] } });
  registry.push(layout, 'app:1');
  base = `${registry.host}/app:1`;
  service = await sharedService();
  daytona = daytonaOf(service);
});
after(async () => {
  await service?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
  await folder?.[Symbol.asyncDispose]();
});

/** A step each costs a process in an emulated guest. The same text is built once. */
const image = (): Untyped =>
  sdk.Image.base(base).env({ COLOUR: 'blue' }).runCommands('echo made with care > /made; cat /made');

describe('a snapshot of the declarative builder', () => {
  let built: Untyped;

  test('is built in a build VM, with its log streamed, and found by name, page and part of its name', async () => {
    const lines: string[] = [];
    built = await daytona.snapshot.create(
      { name: 'sdk/built:1', image: image(), resources: SMALL },
      { onLogs: (line: string) => lines.push(line) },
    );
    assert.equal(built.state, 'active', built.errorReason);
    assert.match(lines.join('\n'), /made with care/);
    assert.deepEqual(
      [built.name, built.cpu, built.mem, built.disk, built.general],
      ['sdk/built:1', 1, 0.25, 0.25, false],
    );
    assert.equal(built.buildInfo.dockerfileContent, image().dockerfile);

    assert.equal((await daytona.snapshot.get('sdk/built:1')).id, built.id);
    assert.equal((await daytona.snapshot.get(built.id)).name, 'sdk/built:1');
    const page = await daytona.snapshot.list(1, 1);
    assert.deepEqual([page.items.length, page.page, page.items[0].id], [1, 1, built.id]);
    assert.ok(page.total > 1 && page.totalPages === page.total, 'the built-in image is listed too');
    assert.equal((await daytona.snapshot.activate(built)).state, 'active');
  });

  test('its log can be read again from its URL, without following it', async () => {
    const { api_key: key, compat_url: basePath } = service.bootstrap;
    const api = new apiClient.SnapshotsApi(new apiClient.Configuration({ basePath, accessToken: key }));
    const { data } = await api.getSnapshotBuildLogsUrl(built.id);
    assert.equal(data.url, `${basePath}/snapshots/${built.id}/build-logs`);
    const read = async (headers: Record<string, string>): Promise<Response> =>
      await fetch(data.url, { headers });
    assert.match(await (await read({ authorization: `Bearer ${key}` })).text(), /made with care/);
    assert.equal((await read({})).status, 401);
    await fails(
      () => daytona.snapshot.create({ name: 'sdk/built:1', image: base }),
      sdk.DaytonaConflictError,
      /already exists/,
    );
    await assert.rejects(api.deactivateSnapshot(built.id), (thrown: Untyped) => {
      assert.equal(thrown.response.status, 501);
      assert.match(thrown.response.data.message, /^snapshot deactivate is not supported/);
      return true;
    });
  });

  test('sandboxes start from it with its size, and have preview URLs, plain and signed', async () => {
    const sandbox = await daytona.create({ snapshot: 'sdk/built:1' }, PATIENT);
    assert.deepEqual([sandbox.memory, sandbox.disk, sandbox.snapshot], [1, 1, 'sdk/built:1']);
    const serve = `cat /made; echo $COLOUR; mkdir /www; echo page > /www/index.html; httpd -p ${PORT} -h /www`;
    assert.equal((await sandbox.process.executeCommand(serve)).result, 'made with care\nblue\n');

    const curl = async (...options: string[]): Promise<string> =>
      (await promisify(execFile)('curl', ['-s', '-m', '60', ...options], { timeout: 90_000 })).stdout;
    const { url, token } = await sandbox.getPreviewLink(PORT);
    assert.equal(await curl('-H', `x-daytona-preview-token: ${token}`, url), 'page\n');
    assert.equal(await curl('-o', '/dev/null', '-w', '%{http_code}', url), '401');
    const signed = await sandbox.getSignedPreviewUrl(PORT, 60);
    assert.equal(await curl(`${signed.url}/index.html`), 'page\n');
    assert.notEqual(signed.token, token);
    await sandbox.delete();
  });

  test('delete() removes it', async () => {
    await daytona.snapshot.delete(built);
    await fails(() => daytona.snapshot.get('sdk/built:1'), sdk.DaytonaNotFoundError, /not found/);
  });
});

test('an image from a registry is pulled for a snapshot; a broken Dockerfile fails with the reason and its log', async () => {
  const pulled = await daytona.snapshot.create({ name: 'pulled', image: base, resources: SMALL });
  assert.deepEqual([pulled.state, pulled.imageName], ['active', base]);
  await daytona.snapshot.delete(pulled);
  const lines: string[] = [];
  // It fails before the first of its steps, each of which costs seconds of a processor in an emulated guest.
  const breaking = sdk.Image.base(`${registry.host}/nothing:1`).runCommands('true');
  await fails(
    () =>
      daytona.snapshot.create(
        { name: 'broken', image: breaking },
        { onLogs: (line: string) => lines.push(line) },
      ),
    sdk.DaytonaError,
    /Name: broken Reason: base image .*nothing:1/s,
  );
  assert.match(lines.join('\n'), /FROM .*nothing:1/);
  const broken = await daytona.snapshot.get('broken');
  assert.equal(broken.state, 'build_failed');
  await fails(() => daytona.snapshot.activate(broken), sdk.DaytonaConflictError, /cannot be activated/);
  await daytona.snapshot.delete(broken);
});

test('create() builds an Image for the sandbox, and says why it could not start', async () => {
  const sandbox = await daytona.create({ image: image(), resources: SMALL }, PATIENT);
  assert.deepEqual([sandbox.state, sandbox.buildInfo.dockerfileContent], ['started', image().dockerfile]);
  assert.equal((await sandbox.process.executeCommand('cat /made')).result, 'made with care\n');
  await sandbox.delete();

  await fails(
    () => daytona.create({ snapshot: `${registry.host}/nothing:1`, name: 'unstartable' }, PATIENT),
    sdk.DaytonaError,
    /status: error, error reason: .*nothing/s,
  );
  await (await daytona.get('unstartable')).delete();
});

test('an Image is a Dockerfile; files of the local machine cannot be added, which fails with 501', async () => {
  const requirements = join(folder.path, 'requirements.txt');
  await writeFile(requirements, 'requests\n');
  await writeFile(join(folder.path, 'pyproject.toml'), '[project]\nname = "x"\ndependencies = ["numpy"]\n');
  await writeFile(join(folder.path, 'Dockerfile'), 'FROM debian:12\nRUN true\n');
  const whole = sdk.Image.debianSlim('3.12')
    .pipInstall('pandas')
    .pipInstallFromPyproject(join(folder.path, 'pyproject.toml'))
    .env({ A: 'b' })
    .workdir('/w')
    .dockerfileCommands(['USER root'])
    .entrypoint(['/bin/sh'])
    .cmd(['-c', 'true']);
  assert.match(whole.dockerfile, /^FROM python:3\.12.*pandas\n.*numpy\nENV A=b\nWORKDIR \/w\nUSER root\n/s);
  assert.equal(
    sdk.Image.fromDockerfile(join(folder.path, 'Dockerfile')).dockerfile,
    'FROM debian:12\nRUN true\n',
  );
  const { snapshot } = daytona;
  const { processImageContext } = snapshot.constructor;
  for (const local of [
    sdk.Image.base(base).addLocalFile(requirements, '/x'),
    sdk.Image.base(base).addLocalDir(folder.path, '/x'),
    sdk.Image.base(base).pipInstallFromRequirements(requirements),
  ])
    for (const call of [
      () => daytona.create({ image: local }),
      () => snapshot.create({ name: 'local', image: local }),
      () => processImageContext(snapshot.objectStorageApi, local),
    ])
      await fails(call, sdk.DaytonaError, /^object-storage push access is not supported/, 501);
});

test('each method of these classes is tested', () => methods.assertComplete());
