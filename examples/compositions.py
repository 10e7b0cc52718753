"""The methods and ablations of the papers, one line each. Runs one training step of each.

python examples/compositions.py
"""

import timm
import torch

import vitmix

COMPOSITIONS = {
    "TokenMix, area labels (tables 2, 3, 8, 9)": "tokenmix",
    "TokenMix, activation labels (tables 2, 6, 9)": "tokenmix(label=activation)",
    "CutMix box, activation labels (TokenMix table 7)": "mix(mask=box, share=activation, loss=bce)",
    "single tokens instead of blocks (TokenMix tables 8, 9)": "mix(mask=scattered, loss=bce)",
    "cross-entropy instead of BCE (TokenMix table 11)": "tokenmix(loss=ce)",
    "MixUp and CutMix switched (TokenMix table 5)": "mixup | cutmix",
    "MixUp and TokenMix switched (TokenMix table 5)": "mixup(loss=bce) | tokenmix",
    "CutMix and TokenMix switched (TokenMix table 5)": "cutmix(loss=bce) | tokenmix",
    "all three switched (not in TokenMix table 5)": "mixup(loss=bce) | cutmix(loss=bce) | tokenmix",
    "the paper's and the released block masks": "tokenmix(preset=paper) | tokenmix(preset=released)",
    "TransMix": "transmix",
    "TransMix's recipe: MixUp in a fifth of the batches": "0.2*mixup | 0.8*transmix",
    "TL-Align": "tl_align",
    "MixUp + CutMix + aligned labels (TL-Align table 7)": "mix(mask=constant, share=aligned) | tl_align",
    "random tokens + aligned labels (TL-Align table 7)": "mix(mask=scattered, share=aligned)",
    "blocks + aligned labels (TL-Align table 7)": "mix(mask=block, share=aligned)",
    "aligned at the last layer only (TL-Align table 8)": "tl_align(blocks=[-1])",
    "aligned at some layers (TL-Align table 8)": "tl_align(blocks=[1, 3])",
    "without normalization (TL-Align table 8)": "tl_align(normalize=False)",
    "boxes on the token grid, as in TL-Align's code": "tl_align(aligned=True)",
    "SMMix": "smmix",
    "SMMix as trained: alternating with MixUp": "mixup | smmix",
    "SMMix masks, attention labels (SMMix table 6)": "mix(mask=salient_box, share=attention) + region + consistency",
    "SMMix masks, activation labels (SMMix table 6)": "mix(mask=salient_box, share=activation) + region + consistency",
    "max-min masks alone (SMMix table 7)": "mix(mask=salient_box)",
    "... with the region loss (SMMix table 7)": "mix(mask=salient_box) + region",
    "... with the consistency loss (SMMix table 7)": "mix(mask=salient_box) + consistency",
    "CutMix with consistency (SMMix table 7)": "cutmix + consistency",
    "window side fixed at one half (SMMix table 8)": "smmix(low=0.5, high=0.5)",
    "window side from U(0, 1) (SMMix table 8)": "smmix(low=0, high=1)",
    "window sides as in SMMix's code": "smmix(sizes=discrete)",
    "random -> same place (SMMix table A4 i)": "smmix(source=random, destination=same)",
    "random -> max (SMMix table A4 ii)": "smmix(source=random, destination=max)",
    "random -> min (SMMix table A4 iii)": "smmix(source=random, destination=min)",
    "max -> same place (SMMix table A4 iv)": "smmix(source=max, destination=same)",
    "max -> max (SMMix table A4 v)": "smmix(source=max, destination=max)",
    "scores from another block (SMMix table A5)": "smmix(blocks=[1])",
    "scores averaged over all blocks (SMMix table A5)": "smmix(blocks=all)",
    "random scores (SMMix table A5)": "smmix(blocks=[])",
    "a separate head for the region loss": "mix(mask=salient_box) + region(head=separate) + consistency",
    "HTM (TokenMixup)": "htm",
    "VTM (TokenMixup)": "vtm",
    "both, as trained on CIFAR-100": "(mixup | cutmix) + htm(block=3, tau=0.2, rho=0.005) + vtm(block=2, tokens=3)",
    "difficulty threshold (TokenMixup supplement, table 1)": "htm(tau=0.25)",
    "saliency threshold (TokenMixup supplement, table 1)": "htm(rho=0.001)",
    "more tokens per layer (TokenMixup supplement, table 1)": "vtm(tokens=10)",
    "five random samples (TokenMixup supplement, table 5)": "htm(choose=random_samples)",
    "random tokens, horizontal (TokenMixup supplement, table 6)": "htm(choose=random_tokens)",
    "random tokens, vertical (TokenMixup supplement, table 6)": "vtm(choose=random)",
    "score net at the last layer (TokenMixup supplement, table 7)": "htm(score_at=last)",
    "saliency rolled out, horizontal (TokenMixup supplement, algorithm 1)": "htm(rollout=2)",
    "saliency rolled out, vertical (TokenMixup supplement, algorithm 2)": "vtm(rollout=1)",
    "ImageNet fine-tuning (TokenMixup)": "htm(block=3, tau=0.1, rho=0.01, score_weight=1.0, stop_gradient=True)",
    "a combination that no paper has": "mix(mask=block, share=aligned, pairing=derangement) + consistency + vtm",
}


def main() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    maps = torch.rand(4, 32, 32)  # in place of a teacher's activation maps
    teacher = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=48, depth=4, num_classes=10
    )
    for name, text in COMPOSITIONS.items():
        model = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=48, depth=4, num_classes=10
        )
        output = vitmix.Learner(model, vitmix.create(text, num_classes=10))(images, labels, maps=maps)
        output.loss.backward()
        print(f"{name:68s} {text:88s} {output.loss:.3f}")
    # Rows that differ in more than the text: another model as guide, and a network without attention.
    learner = vitmix.Learner(model, vitmix.create("smmix", num_classes=10), guide=teacher.eval())
    print(f"{'a frozen guide (SMMix table 9)':68s} {'smmix, guide=teacher':88s} {learner(images, labels).loss:.3f}")
    convnet = timm.create_model("resnet18", num_classes=10)
    masks = ("box", "scattered(grid=[8, 8])", "block(grid=[8, 8])")
    for text in (f"mix(mask={mask}, share={share}, loss=bce)" for mask in masks for share in ("area", "activation")):
        output = vitmix.Learner(convnet, vitmix.create(text, num_classes=10))(images, labels, maps=maps)
        print(f"{'on a ResNet (TokenMix tables 7, 8)':68s} {text:88s} {output.loss:.3f}")


if __name__ == "__main__":
    main()
