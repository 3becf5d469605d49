/** The parts of billing that a server's configuration needs, without the rest of the control plane. */
export { price, PRICE_DEFAULTS, type Prices } from './prices.ts';
export {
  BILLING_MODES,
  BILLING_SETTINGS,
  OVERDRAFT_DEFAULT,
  type BillingMode,
  type BillingSettings,
} from './settings.ts';
