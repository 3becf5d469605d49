/** An image from a Dockerfile, all the way: built, followed, booted, rebuilt and pruned. */
import assert from 'node:assert/strict';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { appImage } from './support/app-image.ts';
import { terminal } from './support/terminal.ts';

const SMALL = { cpu: 1, mem_mib: 256, scratch_mib: 64 };
const DOCKERFILE = `FROM scratch
ADD base.tar /
COPY words /words
RUN cat /words > /made && cat /made
`;

let service: Service;
let folder: string;
const { rlp, output } = terminal(() => ({ service, folder }));

before(async () => {
  folder = await temporaryFolder('releap-dockerfile-');
  const [base] = await appImage();
  await mkdir(join(folder, 'app'));
  await writeFile(join(folder, 'app/base.tar'), base ?? '');
  await writeFile(join(folder, 'app/words'), 'built with care\n');
  await writeFile(join(folder, 'app/Dockerfile'), DOCKERFILE);
  service = await sharedService();
});
after(async () => {
  await service?.[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

interface Image {
  id: string;
  status: string;
  manifest_name: string;
  layer_count: number;
}

async function image(name: string): Promise<Image> {
  return (await service.call<Image>('GET', `/images/${name}`)).body;
}

test('a folder with a Dockerfile is built, boots, is built again and is pruned', async () => {
  const built = await rlp(['image', 'build', '-t', 'whole', 'app']);
  assert.equal(built.code, 0, built.stderr);
  assert.match(built.stderr, /built with care/);
  const first = await image('whole');
  assert.deepEqual([first.id, first.status, first.layer_count], [built.stdout.trim(), 'ready', 3]);

  const { id } = await service.create({ ...SMALL, image: 'whole' });
  assert.equal((await service.exec(id, 'cat /made')).result, 'built with care\n');

  // Nothing has changed; the sandbox keeps what it runs from in any case.
  const again = await rlp(['image', 'build', '-t', 'whole', 'app']);
  assert.equal(again.code, 0, again.stderr);
  assert.match(again.stderr, /have not changed/);
  assert.equal((await image('whole')).manifest_name, first.manifest_name);

  // As a function: unchanged, it is not built again, and its handler is tried.
  const handler = ['sh', '-c', 'httpd -f -p "$RLP_FN_PORT" -h /'];
  const deployed = await rlp(['fn', 'deploy', 'of-a-folder', 'app', '--mem', '256', '--', ...handler]);
  assert.equal(deployed.code, 0, deployed.stderr);
  assert.match(deployed.stderr, /have not changed/);
  assert.equal(deployed.stdout.trim(), 'of-a-folder v1');
  const { current_version: version } = (
    await service.call<{ current_version: object }>('GET', '/fns/of-a-folder')
  ).body;
  assert.partialDeepStrictEqual(version, {
    version: 1,
    template_state: 'published',
    template_error: null,
    handler,
  });
  const images = (await service.call<{ images: { name: string }[] }>('GET', '/images')).body.images;
  assert.deepEqual(
    images.map(({ name }) => name).filter((name) => name.startsWith('fn')),
    [],
  );
  assert.equal((await service.call('DELETE', '/fns/of-a-folder')).status, 204);

  const source = { type: 'dockerfile', dockerfile: 'FROM scratch\nCOPY nothing /there\n' };
  const { body } = await service.call<{ job_id: string }>('POST', '/images', { name: 'useless', source });
  const followed = await service.call<string>('GET', `/jobs/${body.job_id}/logs?follow=1`);
  assert.match(followed.body, /COPY nothing/);
  const failed = await eventually('the end of the failed build', async () => {
    const job = (await service.call<{ status: string; error: string }>('GET', `/jobs/${body.job_id}`)).body;
    return job.status === 'failed' ? job : undefined;
  });
  assert.match(failed.error, /COPY nothing \/there \(line 2\): no such file in the context/);
  await output(['image', 'prune', '--yes']);
  assert.equal((await service.call('GET', '/images/useless')).status, 404);
  assert.equal((await service.call('GET', '/images/whole')).status, 200);
  await service.remove(id);
  await output(['image', 'rm', 'whole']);
});
