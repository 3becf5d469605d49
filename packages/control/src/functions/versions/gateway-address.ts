/** Where control servers reach the gateways of a region. */
import { badGateway, quote } from '@releap/contract';
import type { Regions } from '../../fleet/regions/regions.ts';

const TOOLBOX_PATH = '/toolbox';

/**
 * Base URL of the gateways of a region, without a final slash: that of its toolbox, which the same listeners serve.
 * @throws 502 for a region that has none
 */
export async function gatewayAddress(regions: Pick<Regions, 'recent'>, region: string): Promise<string> {
  const url = (await regions.recent()).find(({ id }) => id === region)?.toolbox_proxy_url;
  if (url === undefined || url === null)
    throw badGateway(`region ${quote(region)} has no gateway that serves functions`);
  const base = url.replace(/\/+$/, '');
  return base.endsWith(TOOLBOX_PATH) ? base.slice(0, -TOOLBOX_PATH.length) : base;
}
