import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gatewayUrl, openService } from '../src/index.ts';

const HERE = {
  id: 'here',
  name: 'Here',
  status: 'active',
  is_default: true,
  toolbox_proxy_url: 'https://gw.here',
};
const OLD = {
  id: 'old',
  name: 'Old',
  status: 'disabled',
  is_default: false,
  toolbox_proxy_url: 'https://gw.old',
};

test('the gateway of a region is found where the region takes no new sandboxes, too', async () => {
  const asked: string[] = [];
  const service = openService({
    url: 'http://service.test',
    apiKey: 'rlp_any',
    fetch: async (request) => {
      const { search } = new URL(request instanceof Request ? request.url : request);
      asked.push(search);
      return Response.json(search === '' ? [HERE] : [HERE, OLD]);
    },
  });
  assert.equal(await gatewayUrl(service, 'here'), 'https://gw.here/');
  assert.deepEqual(asked, ['']);
  assert.equal(await gatewayUrl(service, 'old'), 'https://gw.old/');
  assert.deepEqual(asked, ['', '?include_disabled=true']);
  await assert.rejects(gatewayUrl(service, 'gone'), /region "gone" offers no way into its sandboxes/);
});
