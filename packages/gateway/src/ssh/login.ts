import type { GatewayTarget } from '@releap/contract';

/** An authenticated client, and its sandbox. */
export interface Login {
  target: GatewayTarget;
  /** The client's credential: each channel needs a grant of its own. */
  token: string;
}
