"""Every formula of the library as a function of tensors, in one flat namespace."""

from vitmix._mix import area_share as area_share
from vitmix._mix import expand_mask as expand_mask
from vitmix._mix import initial_token_share as initial_token_share
from vitmix._mix import label_rows as label_rows
from vitmix._mix import mix_images as mix_images
from vitmix._mix import mix_targets as mix_targets
from vitmix._mix import mix_tokens as mix_tokens
from vitmix._mix import resample_mask as resample_mask
from vitmix._mix import smooth_rows as smooth_rows
from vitmix.attention.flow import Products as Products
from vitmix.attention.flow import rollout_saliency as rollout_saliency
from vitmix.attention.summaries import attention_maps as attention_maps
from vitmix.attention.summaries import carried_share as carried_share
from vitmix.attention.summaries import class_row as class_row
from vitmix.attention.summaries import column_mean as column_mean
from vitmix.attention.summaries import pulled_weight as pulled_weight
from vitmix.dense.boxes import mix_boxes as mix_boxes
from vitmix.dense.masks import mask_cross_entropy as mask_cross_entropy
from vitmix.dense.masks import mix_masks as mix_masks
from vitmix.dense.pasting import copy_paste as copy_paste
from vitmix.dense.pasting import draw_objects as draw_objects
from vitmix.parts.assignment import assign_partners as assign_partners
from vitmix.parts.assignment import saliency_gain as saliency_gain
from vitmix.parts.hidden import exchange_tokens as exchange_tokens
from vitmix.parts.hidden import horizontal_mix as horizontal_mix
from vitmix.parts.hidden import own_weight as own_weight
from vitmix.parts.hidden import pick_tokens as pick_tokens
from vitmix.parts.hidden import sample_difficulty as sample_difficulty
from vitmix.parts.hidden import take_salient as take_salient
from vitmix.parts.hidden import top_tokens as top_tokens
from vitmix.parts.losses import consistency_loss as consistency_loss
from vitmix.parts.losses import region_loss as region_loss
from vitmix.parts.losses import region_means as region_means
from vitmix.parts.losses import sample_cross_entropy as sample_cross_entropy
from vitmix.parts.losses import soft_bce as soft_bce
from vitmix.parts.losses import soft_cross_entropy as soft_cross_entropy
from vitmix.parts.maps import class_maps as class_maps
from vitmix.parts.maps import crop_label_maps as crop_label_maps
from vitmix.parts.maps import crop_maps as crop_maps
from vitmix.parts.maps import dense_maps as dense_maps
from vitmix.parts.masks import best_window as best_window
from vitmix.parts.masks import beta_share as beta_share
from vitmix.parts.masks import box_mask as box_mask
from vitmix.parts.masks import boxes_around as boxes_around
from vitmix.parts.masks import draw_blocks as draw_blocks
from vitmix.parts.masks import draw_boxes as draw_boxes
from vitmix.parts.masks import draw_scattered as draw_scattered
from vitmix.parts.masks import random_window as random_window
from vitmix.parts.masks import window_region as window_region
from vitmix.parts.masks import window_sums as window_sums
from vitmix.parts.pairing import best_assignment as best_assignment
from vitmix.parts.pairing import random_derangement as random_derangement
from vitmix.parts.pairing import reversed_pairs as reversed_pairs
from vitmix.parts.pairing import rolled_pairs as rolled_pairs
from vitmix.parts.prior import gaussian_prior as gaussian_prior
from vitmix.parts.prior import prior_share as prior_share
from vitmix.parts.shares import activation_targets as activation_targets
from vitmix.parts.shares import activation_weights as activation_weights
from vitmix.parts.shares import align_share as align_share
from vitmix.parts.shares import attention_share as attention_share

__all__ = [
    "Products",
    "activation_targets",
    "activation_weights",
    "align_share",
    "area_share",
    "assign_partners",
    "attention_maps",
    "attention_share",
    "best_assignment",
    "best_window",
    "beta_share",
    "box_mask",
    "boxes_around",
    "carried_share",
    "class_maps",
    "class_row",
    "column_mean",
    "consistency_loss",
    "copy_paste",
    "crop_label_maps",
    "crop_maps",
    "dense_maps",
    "draw_blocks",
    "draw_boxes",
    "draw_objects",
    "draw_scattered",
    "exchange_tokens",
    "expand_mask",
    "gaussian_prior",
    "horizontal_mix",
    "initial_token_share",
    "label_rows",
    "mask_cross_entropy",
    "mix_boxes",
    "mix_images",
    "mix_masks",
    "mix_targets",
    "mix_tokens",
    "own_weight",
    "pick_tokens",
    "prior_share",
    "pulled_weight",
    "random_derangement",
    "random_window",
    "region_loss",
    "region_means",
    "resample_mask",
    "reversed_pairs",
    "rolled_pairs",
    "rollout_saliency",
    "saliency_gain",
    "sample_cross_entropy",
    "sample_difficulty",
    "smooth_rows",
    "soft_bce",
    "soft_cross_entropy",
    "take_salient",
    "top_tokens",
    "window_region",
    "window_sums",
]
