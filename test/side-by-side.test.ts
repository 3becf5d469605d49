import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { leftovers } from '@releap/testing/leftovers';
import { Service } from '@releap/testing/service';

const SMALL = { cpu: 1, mem_mib: 256, scratch_mib: 64 };

describe('two services on one machine', () => {
  let first: Service;
  let second: Service;
  let inFirst: string;
  let inSecond: string;

  before(async () => {
    [first, second] = await Promise.all([Service.start(), Service.start()]);
    [{ id: inFirst }, { id: inSecond }] = await Promise.all([
      first.create({ ...SMALL, ports: [{ vm_port: 80 }], env: { OF: 'first' } }),
      second.create({ ...SMALL, ports: [{ vm_port: 80 }], env: { OF: 'second' } }),
    ]);
  });
  after(async () => {
    await Promise.all([first, second].map((service) => service?.[Symbol.asyncDispose]()));
  });

  async function answer(service: Service, id: string): Promise<string> {
    const { body } = await service.call<{ host_ip: string; port_map: { host_port: number }[] }>(
      'GET',
      `/vms/${id}`,
    );
    const page = await fetch(`http://${body.host_ip}:${body.port_map[0]?.host_port}/`);
    return await page.text();
  }

  test('each runs its own sandboxes, with ports and networks of their own', async () => {
    for (const [service, id, name] of [
      [first, inFirst, 'first'],
      [second, inSecond, 'second'],
    ] as const) {
      const { result } = await service.exec(
        id,
        'mkdir /www && echo $OF > /www/index.html && httpd -p 80 -h /www && echo $OF',
      );
      assert.equal(result, `${name}\n`);
      assert.equal(await answer(service, id), `${name}\n`);
    }
    const address = async (service: Service, id: string): Promise<unknown> =>
      (await service.call('GET', `/vms/${id}`)).body['vm_ip'];
    assert.notEqual(await address(first, inFirst), await address(second, inSecond));
  });

  test('neither knows the keys and the sandboxes of the other', async () => {
    assert.equal((await first.call('GET', '/vms', undefined, second.bootstrap.api_key)).status, 401);
    assert.equal((await first.call('GET', `/vms/${inSecond}`)).status, 404);
    const { body } = await first.call<{ vms: { id: string }[] }>('GET', '/vms');
    assert.deepEqual(
      body.vms.map((vm) => vm.id),
      [inFirst],
    );
  });

  test('when one stops it takes all of its own away, and the other works on', async () => {
    assert.equal(await first.stop(), 0);
    assert.deepEqual(await leftovers(first.home), []);
    assert.equal((await second.exec(inSecond, 'echo alive')).result, 'alive\n');
    assert.equal(await answer(second, inSecond), 'second\n');
    await second.remove((await second.create(SMALL)).id);
  });

  test('when both have stopped nothing is left of either', async () => {
    assert.equal(await second.stop(), 0);
    assert.deepEqual(await leftovers(first.home), []);
    assert.deepEqual(await leftovers(second.home), []);
  });
});
