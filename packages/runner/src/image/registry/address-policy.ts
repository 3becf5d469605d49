/** Which addresses a pull may connect to: references, redirects and token servers are the tenant's or the registry's choice. */
import { lookup } from 'node:dns';
import { AddressPolicy as HostAddressPolicy } from '@releap/contract/address-policy';
import { ImageError } from '../image-error.ts';

export { isLoopbackHost, isPublicAddress, LOOPBACK_ENTRY } from '@releap/contract/address-policy';

/** What the operator allows besides public addresses: `RELEAP_REGISTRY_PRIVATE_HOSTS`. Refuses with `private-address`. */
export class AddressPolicy extends HostAddressPolicy {
  constructor(allowed: readonly string[]) {
    const refusal = (what: string): ImageError =>
      new ImageError(
        'private-address',
        `${what} is in a private or reserved network; the operator can allow it for pulls with RELEAP_REGISTRY_PRIVATE_HOSTS`,
      );
    super(allowed, { lookup, refusal });
  }
}
